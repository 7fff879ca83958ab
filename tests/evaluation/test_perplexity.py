from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torso.data.encoding import Example
from torso.data.micro_batches import MicroBatch, collate, evaluation_batches
from torso.evaluation.model import CachedModel
from torso.evaluation.perplexity import perplexity

SIZES = [(1, 5), (7, 3), (4, 12), (20, 1), (3, 40), (9, 9)]


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    """Prompts and targets of various lengths."""
    generator = torch.Generator().manual_seed(13)
    ids = [torch.randint(97, (sum(size),), generator=generator).tolist() for size in SIZES]
    return [Example(tuple(t[:cut]), tuple(t[cut:]), 0) for t, (cut, _) in zip(ids, SIZES, strict=True)]


@pytest.fixture(scope="module")
def loss_sum(reference: Any, examples: list[Example]) -> float:
    """In float64 through transformers, one sequence at a time without padding."""
    total = 0.0
    double = reference.double()
    for example in examples:
        ids = torch.tensor([[*example.prompt_ids, *example.target_ids]])
        with torch.no_grad():
            chances = double(ids).logits[0, :-1].log_softmax(dim=1)
        picked = chances.gather(1, ids[0, 1:, None])[len(example.prompt_ids) - 1 :]
        total -= float(picked.sum())
    reference.float()
    return total


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_it_is_that_of_float64_over_target_tokens_in_whatever_batches(
    model: CachedModel, examples: list[Example], loss_sum: float, batch_size: int
) -> None:
    found = perplexity(model, evaluation_batches(examples, batch_size))
    assert found.target_tokens == sum(targets for _, targets in SIZES) == 70
    assert found.loss_sum == pytest.approx(loss_sum, rel=1e-6)
    assert found.value == pytest.approx(math.exp(loss_sum / 70), rel=1e-5)


def test_it_is_a_ratio_of_sums_and_no_mean_of_means(model: CachedModel, examples: list[Example]) -> None:
    parts = [perplexity(model, [collate(0, [example])]) for example in examples]
    whole = perplexity(model, evaluation_batches(examples, 100))
    assert whole.loss_sum == pytest.approx(sum(part.loss_sum for part in parts), rel=1e-6)
    assert abs(math.log(whole.value) - sum(math.log(part.value) for part in parts) / len(parts)) > 1e-3


def test_batches_without_targets_add_nothing_and_nothing_at_all_is_nan(
    model: CachedModel, examples: list[Example]
) -> None:
    batch = collate(0, examples[:2])
    empty = MicroBatch(0, batch.token_ids, batch.lengths, torch.zeros_like(batch.target_mask))
    assert perplexity(model, [batch, empty]) == perplexity(model, [batch])
    for nothing in (perplexity(model, [empty]), perplexity(model, [])):
        assert math.isnan(nothing.value)
        assert (nothing.loss_sum, nothing.target_tokens) == (0.0, 0)


def test_a_loss_beyond_all_bounds_is_infinite(model: CachedModel, examples: list[Example]) -> None:
    class Hopeless(CachedModel):
        def hidden(self, token_ids: torch.Tensor, lengths: Any) -> torch.Tensor:
            return super().hidden(token_ids, lengths) * 1e6

    broken = Hopeless(model.head, model.middle, model.tail, model.cuts, model.device)
    assert perplexity(broken, evaluation_batches(examples, 4)).value == math.inf
