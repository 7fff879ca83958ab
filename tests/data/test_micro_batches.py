from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from torso.data.encoding import Example, encode_split
from torso.data.micro_batches import BatchPlan, MicroBatch, collate, evaluation_batches
from torso.data.sources import load
from torso.data.tokenizer import Tokenizer
from torso.errors import ConfigError, DataError

EOS = 0


def make_examples(count: int) -> list[Example]:
    """Examples of random lengths; the first token is the example's number, so that it can be recognised."""
    lengths = random.Random(1)
    return [
        Example((n + 1, *[7] * lengths.randint(0, 30), EOS), (*[9] * lengths.randint(1, 30), EOS), n)
        for n in range(count)
    ]


def numbers(batch: MicroBatch) -> list[int]:
    return [int(row[0]) - 1 for row in batch.token_ids]


def digest(plan: BatchPlan, steps: range) -> str:
    parts = [b.token_ids.numpy().tobytes() for s in steps for b in plan.step(s).micro_batches]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_micro_batch_is_padded_to_its_own_longest_with_the_end_token() -> None:
    batch = collate(3, [Example((5, EOS), (6, EOS), 0), Example((5, 5, EOS), (6, 7, 8, EOS), 1)])
    assert batch.index == 3
    assert batch.token_ids.tolist() == [[5, EOS, 6, EOS, EOS, EOS, EOS], [5, 5, EOS, 6, 7, 8, EOS]]
    assert batch.lengths.tolist() == [4, 7]
    assert batch.target_mask.int().tolist() == [[0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert (batch.num_targets, batch.num_tokens, batch.num_padded_tokens) == (6, 11, 14)
    assert batch.token_ids.dtype == batch.lengths.dtype == torch.int64


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1024, 1029, 2500])
def test_every_example_comes_exactly_once_an_epoch_and_only_the_last_step_is_short(count: int) -> None:
    plan = BatchPlan(make_examples(count), 3, 8, 4)
    assert plan.steps_per_epoch == -(-count // 8)
    for epoch in (1, 2):
        first = (epoch - 1) * plan.steps_per_epoch + 1
        steps = [plan.step(s) for s in range(first, first + plan.steps_per_epoch)]
        assert {step.epoch for step in steps} == {epoch}
        seen = Counter(n for step in steps for batch in step.micro_batches for n in numbers(batch))
        assert seen == Counter(range(count))
        for step in steps[:-1]:
            assert [len(batch.lengths) for batch in step.micro_batches] == [4, 4]
        assert all(batch.index == i for step in steps for i, batch in enumerate(step.micro_batches))


def test_a_step_is_a_function_of_its_number_alone() -> None:
    examples = make_examples(100)
    plan, other = BatchPlan(examples, 3, 8, 4), BatchPlan(examples, 3, 8, 4)
    expected = {s: plan.step(s) for s in (1, 5, 13, 14, 30)}
    for s in (30, 14, 1, 13, 5, 1):
        step = other.step(s)
        assert (step.step, step.epoch) == (s, expected[s].epoch)
        for mine, theirs in zip(step.micro_batches, expected[s].micro_batches, strict=True):
            assert torch.equal(mine.token_ids, theirs.token_ids)
            assert torch.equal(mine.target_mask, theirs.target_mask)


def test_the_order_is_the_same_on_every_machine() -> None:
    plan = BatchPlan(make_examples(100), 3, 8, 4)
    assert digest(plan, range(1, 14)) == "29c003b4d6e99d2b85cb09bc69f22dfd4b3e5013cdc7f578ff655f6cfaabcb7b"


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    plan = BatchPlan(make_examples(100), 3, 8, 4)
    orders = {digest(plan, range(1, 14)), digest(plan, range(14, 27))}
    orders.add(digest(BatchPlan(make_examples(100), 4, 8, 4), range(1, 14)))
    assert len(orders) == 3


def test_a_step_mixes_short_and_long_micro_batches() -> None:
    plan = BatchPlan(make_examples(2048), 3, 32, 4)
    spreads = []
    for s in range(1, 65):
        means = [float(batch.lengths.double().mean()) for batch in plan.step(s).micro_batches]
        spreads.append(max(means) - min(means))
    assert sum(spreads) / len(spreads) > 20


def test_little_padding_is_wasted() -> None:
    examples = make_examples(2048)
    plan = BatchPlan(examples, 3, 8, 8)
    steps = [plan.step(s) for s in range(1, plan.steps_per_epoch + 1)]
    padded = sum(batch.num_padded_tokens for step in steps for batch in step.micro_batches)
    assert plan.padding_waste() == pytest.approx(1 - sum(map(len, examples)) / padded)
    assert plan.padding_waste() < 0.05


def test_real_e2e_wastes_less_than_five_percent_at_micro_batch_eight(shared_data: Path) -> None:
    groups = load(f"e2e:{shared_data / 'e2e' / 'e2e-dataset.zip'}").split("train")
    encoded = encode_split(groups, Tokenizer(shared_data / "gpt2-bpe"), 512)
    assert encoded.report.num_examples == 42_061
    assert encoded.report.num_over_long == 0
    assert BatchPlan(encoded.examples, 1, 8, 8).padding_waste() < 0.05
    assert BatchPlan(encoded.examples, 1, 64, 8).padding_waste(2) < 0.05


def test_the_fingerprint_follows_data_seed_and_sizes() -> None:
    examples = make_examples(20)
    plans = [
        BatchPlan(examples, 3, 8, 4),
        BatchPlan(examples[:-1], 3, 8, 4),
        BatchPlan([*examples[1:], examples[0]], 3, 8, 4),
        BatchPlan(examples, 4, 8, 4),
        BatchPlan(examples, 3, 16, 4),
        BatchPlan(examples, 3, 8, 8),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert plans[0].fingerprint == BatchPlan(make_examples(20), 3, 8, 4).fingerprint


def test_evaluation_takes_everything_once() -> None:
    examples = make_examples(21)
    batches = evaluation_batches(examples, 8)
    assert sorted(n for batch in batches for n in numbers(batch)) == list(range(21))
    assert [batch.index for batch in batches] == [0, 1, 2]


def test_nothing_to_train_on_and_sizes_that_do_not_fit_are_errors() -> None:
    for make in (lambda: BatchPlan([], 0, 8, 8), lambda: evaluation_batches([], 8)):
        with pytest.raises(DataError, match="there is no example"):
            make()
    for sizes in ((8, 3), (8, 16), (0, 0), (8, 0), (-8, 4)):
        with pytest.raises(ConfigError, match="is not a multiple of"):
            BatchPlan(make_examples(3), 0, *sizes)
    with pytest.raises(ConfigError, match="batch size is 0"):
        evaluation_batches(make_examples(3), 0)
    with pytest.raises(ValueError, match="counted from 1"):
        BatchPlan(make_examples(3), 0, 8, 4).step(0)
