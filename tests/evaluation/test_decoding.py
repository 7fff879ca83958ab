"""Greedy decoding through head, middle and tail against transformers' generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from torso.errors import DataError
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.model import CachedModel, GenerationMiddle

LENGTHS = (1, 7, 3, 12, 7, 2, 30, 5)
NEVER = 97
"""No token: the vocabulary ends before it."""


def greedy(
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    end_id: int,
    max_new_tokens: int = 20,
    batch_size: int = 64,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    config = DecodingConfig(max_new_tokens=max_new_tokens, batch_size=batch_size)
    return decode(model, prompts, end_id, config, on_progress)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(97, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def free(reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers says without an end token, each prompt alone."""
    return [generated(reference, prompt) for prompt in prompts]


def generated(reference: Any, prompt: Sequence[int], end_id: int | None = None) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=end_id,
        pad_token_id=0,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_prompts_of_any_length_in_a_batch_give_transformers_tokens(
    model: CachedModel, prompts: list[list[int]], free: list[list[int]], batch_size: int
) -> None:
    assert greedy(model, prompts, NEVER - 1, 20, batch_size) == [until(tokens, NEVER - 1) for tokens in free]


def until(tokens: list[int], end_id: int) -> list[int]:
    """Tokens before the end token."""
    return tokens[: tokens.index(end_id)] if end_id in tokens else tokens


def test_each_output_ends_at_the_end_token_which_is_left_out(
    model: CachedModel, reference: Any, prompts: list[list[int]], free: list[list[int]]
) -> None:
    ends = [tokens[4] for tokens in free]
    for end_id in ends[:3]:
        expected = [until(generated(reference, prompt, end_id), end_id) for prompt in prompts]
        found = greedy(model, prompts, end_id, 20)
        assert found == expected
        assert len({len(tokens) for tokens in found}) > 1
        assert not any(end_id in tokens for tokens in found)


def test_an_end_token_at_once_gives_an_empty_output(
    model: CachedModel, prompts: list[list[int]], free: list[list[int]]
) -> None:
    assert greedy(model, prompts[:1], free[0][0], 20) == [[]]


@pytest.mark.parametrize("count", [1, 5])
def test_no_more_than_the_tokens_asked_for_come(
    model: CachedModel, prompts: list[list[int]], free: list[list[int]], count: int
) -> None:
    assert greedy(model, prompts, NEVER - 1, count) == [until(tokens[:count], NEVER - 1) for tokens in free]


def test_outputs_come_in_the_prompts_order_and_progress_is_told(model: CachedModel, prompts: list[list[int]]) -> None:
    told: list[int] = []
    forwards = greedy(model, prompts, NEVER - 1, 8, batch_size=3, on_progress=told.append)
    assert told == [3, 6, 8]
    assert greedy(model, prompts[::-1], NEVER - 1, 8, batch_size=3) == forwards[::-1]
    assert greedy(model, [], NEVER - 1) == []


def test_all_positions_may_be_used_and_one_more_is_an_error(model: CachedModel, reference: Any) -> None:
    prompt = [5] * 44
    assert greedy(model, [prompt], NEVER - 1, 20) == [until(generated(reference, prompt), NEVER - 1)]
    with pytest.raises(DataError, match=r"prompt 2 has 45 tokens; with 20 new ones .* model's 64 positions"):
        greedy(model, [prompt, [5] * 45], NEVER - 1, 20)


def test_an_empty_prompt_is_an_error(model: CachedModel) -> None:
    with pytest.raises(DataError, match="prompt 2 is empty"):
        greedy(model, [[1], []], NEVER - 1, 20)


class Counted:
    """A middle that fails in its third call, and counts what it opened and closed."""

    def __init__(self) -> None:
        self.opened, self.closed, self.calls = 0, 0, 0

    def infer(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        return x

    def open(self, batch: int) -> GenerationMiddle:
        self.opened += 1
        return self

    def forward(self, x: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("lost")
        return x

    def close(self) -> None:
        self.closed += 1


def test_caches_are_closed_also_when_the_middle_fails(model: CachedModel, prompts: list[list[int]]) -> None:
    middle = Counted()
    broken = CachedModel(model.head, middle, model.tail, model.cuts, model.device)
    with pytest.raises(RuntimeError, match="lost"):
        greedy(broken, prompts, NEVER - 1, 20)
    assert (middle.opened, middle.closed) == (1, 1)
