"""Dropout in the model: asked for by config and scope, and chosen by (seed, step, micro-batch, site) alone."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from torso.model.config import Cuts, GPT2Config
from torso.model.stages import GPT2, Body, Head, Tail
from torso.model.weights import RandomWeights, build
from torso.randomness import DropoutKey, dropout_scope

KEY = DropoutKey(seed=1, step=2, micro_batch=3)
SITES = ("embd_pdrop", "attn_pdrop", "resid_pdrop")


def with_dropout(small: RandomWeights, **dropouts: float) -> GPT2:
    config = dataclasses.replace(small.config, **dropouts)
    return build(lambda config, cuts: GPT2(config), small, Cuts.default(config.n_layer), config=config)


def token_ids(config: GPT2Config) -> Tensor:
    return torch.randint(config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(2))


def logits(model: GPT2, key: DropoutKey | None) -> Tensor:
    with dropout_scope(key), torch.no_grad():
        found: Tensor = model(token_ids(model.config))
    return found


def test_nothing_is_dropped_unless_config_and_scope_both_ask(small: RandomWeights) -> None:
    plain = logits(with_dropout(small), None)
    assert torch.equal(logits(with_dropout(small), KEY), plain)
    assert torch.equal(logits(with_dropout(small, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1), None), plain)


@pytest.mark.parametrize("site", SITES)
def test_the_same_key_gives_the_same_bits_and_each_part_of_it_counts(small: RandomWeights, site: str) -> None:
    model = with_dropout(small, **{site: 0.2})
    first = logits(model, KEY)
    assert torch.equal(logits(model, KEY), first)
    for part in ("seed", "step", "micro_batch"):
        other = logits(model, dataclasses.replace(KEY, **{part: 9}))
        assert not torch.equal(other, first), part


@pytest.mark.parametrize("site", SITES)
def test_equal_sequences_of_one_batch_lose_different_elements(small: RandomWeights, site: str) -> None:
    model = with_dropout(small, **{site: 0.2})
    twice = token_ids(model.config)[:1].repeat(2, 1)
    with dropout_scope(KEY):
        found = model(twice)
    assert not torch.equal(found[0], found[1])


def test_torchs_own_random_state_is_neither_used_nor_moved(small: RandomWeights) -> None:
    model = with_dropout(small, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)
    state = torch.random.get_rng_state()
    first = logits(model, KEY)
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(logits(model, KEY), first)


def test_the_attention_written_out_for_dropout_equals_the_fused_one_when_all_is_kept(small: RandomWeights) -> None:
    found = logits(with_dropout(small, attn_pdrop=1e-9), KEY)
    torch.testing.assert_close(found, logits(with_dropout(small), None), rtol=1e-5, atol=1e-5)


def test_cut_and_whole_drop_the_same_elements(small: RandomWeights) -> None:
    model = with_dropout(small, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)
    cuts = Cuts(1, 4, 5)
    head, body, tail = (build(stage, small, cuts, config=model.config) for stage in (Head, Body, Tail))
    with dropout_scope(KEY):
        found = tail.logits(tail(body(head(token_ids(model.config)))))
    assert torch.equal(found, logits(model, KEY))


def test_the_mean_over_many_masks_is_the_value_without_dropout() -> None:
    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, embd_pdrop=0.5)
    head = build(Head, RandomWeights(config, 0), Cuts(0, 0, 1))
    ids, total, count = torch.tensor([[1, 2, 3]]), torch.zeros(1, 3, 8), 2000
    for step in range(count):
        with dropout_scope(DropoutKey(0, step, 0)):
            total += head(ids)
    error = (total / count - head(ids)).abs() / head(ids).abs()
    assert float(error.max()) < 5 / math.sqrt(count)
