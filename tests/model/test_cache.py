"""Decoding with caches equals computing everything anew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from torso.model.cache import KeyValueCache
from torso.model.config import Cuts
from torso.model.stages import Body, Head, Tail
from torso.model.weights import RandomWeights, build

CUTS = Cuts(1, 3, 5)


class Staged:
    """Head, body and tail with a cache each."""

    def __init__(self, source: RandomWeights) -> None:
        self.parts = (build(Head, source, CUTS), build(Body, source, CUTS), build(Tail, source, CUTS))
        self.caches = [KeyValueCache(layers) for layers in (CUTS.head, CUTS.body, CUTS.tail)]

    def anew(self, token_ids: Tensor) -> Tensor:
        """Hidden states [B, T, C] without caches."""
        x = token_ids
        for part in self.parts:
            x = part(x)
        return x

    def cached(self, token_ids: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Hidden states [B, t, C] of a further chunk."""
        x = token_ids
        for part, cache in zip(self.parts, self.caches, strict=True):
            x = part(x, cache=cache, lengths=lengths)
        return x

    def select(self, rows: Sequence[int]) -> None:
        for cache in self.caches:
            cache.select(rows)


@pytest.fixture
def model(small: RandomWeights) -> Staged:
    return Staged(small)


@pytest.fixture
def token_ids() -> Tensor:
    return torch.randint(61, (3, 12), generator=torch.Generator().manual_seed(8))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 1, 1, 1, 4], [11, 1]])
def test_in_whatever_chunks_tokens_come_hidden_states_are_the_same(
    model: Staged, token_ids: Tensor, chunks: list[int]
) -> None:
    found = torch.cat([model.cached(chunk) for chunk in token_ids.split(chunks, dim=1)], dim=1)
    close(found, model.anew(token_ids))
    assert [cache.columns for cache in model.caches] == [12] * 3
    assert {cache.batch for cache in model.caches} == {3}


@pytest.mark.parametrize("pad", [0, 60])
def test_rows_of_different_lengths_go_on_as_if_each_were_alone(model: Staged, token_ids: Tensor, pad: int) -> None:
    lengths = [7, 2, 5]
    padded = torch.full((3, 7), pad)
    for row, length in enumerate(lengths):
        padded[row, :length] = token_ids[row, :length]
    chunks = [model.cached(padded, lengths)]
    for offset in range(3):
        following = torch.stack([token_ids[row, length + offset] for row, length in enumerate(lengths)])
        chunks.append(model.cached(following[:, None]))
    for row, length in enumerate(lengths):
        alone = model.anew(token_ids[row : row + 1, : length + 3])[0]
        close(torch.cat([chunks[0][row, :length], *(chunk[row] for chunk in chunks[1:])]), alone)


def test_rows_may_be_left_out_reordered_and_doubled(model: Staged, token_ids: Tensor) -> None:
    model.cached(token_ids[:, :6])
    rows = [2, 0, 2]
    model.select(rows)
    found = model.cached(token_ids[:, 6:7])
    expected = model.anew(torch.cat([token_ids[rows, :6], token_ids[:, 6:7]], dim=1))
    close(found, expected[:, 6:])


def test_padding_that_reaches_past_the_last_position_is_harmless(model: Staged) -> None:
    ids = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(9))
    model.cached(ids[:, :30], [30, 1])
    found = model.cached(ids[:, 30:], [2, 1])
    close(found[0], model.anew(ids[:1])[0, 30:])
    close(found[1, :1], model.anew(ids[1:, [0, 30]])[0, 1:])


def test_an_empty_cache_has_no_batch_and_selecting_from_it_changes_nothing() -> None:
    cache = KeyValueCache(range(2))
    cache.select([0, 1])
    assert (cache.columns, cache.batch) == (0, None)


def test_rows_that_share_a_prompt_go_on_as_if_each_had_its_own(model: Staged, token_ids: Tensor) -> None:
    """As beams do: several rows a prompt, changed places, a prompt that is left out, and uneven rows at last."""
    history = token_ids[:, :6].tolist()
    model.cached(token_ids[:, :6])
    generator = torch.Generator().manual_seed(5)
    choices = [
        [0, 0, 0, 1, 1, 1, 2, 2, 2],
        [0, 2, 1, 3, 3, 4, 8, 7, 6],
        [0, 1, 2, 3, 4, 4, 6, 7, 8],
        [1, 0, 2, 6, 6, 8],
        [0, 1, 2, 3, 5],
        [4, 0],
    ]
    for rows in choices:
        model.select(rows)
        new = torch.randint(61, (len(rows), 1), generator=generator)
        found = model.cached(new)
        history = [[*history[row], token] for row, token in zip(rows, new[:, 0].tolist(), strict=True)]
        close(found[:, 0], model.anew(torch.tensor(history))[:, -1])
        assert {cache.columns for cache in model.caches} == {len(history[0])}
        assert {cache.batch for cache in model.caches} == {len(rows)}


def test_more_columns_follow_than_room_was_made_for_at_first(model: Staged) -> None:
    ids = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(9))
    chunks = [model.cached(chunk) for chunk in ids.split([2, *[1] * 20, 3, 7], dim=1)]
    close(torch.cat(chunks, dim=1), model.anew(ids))
