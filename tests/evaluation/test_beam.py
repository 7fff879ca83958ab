"""Beam search against transformers' generate, and its n-gram rule against a search written out in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from torso.errors import ConfigError
from torso.evaluation.beam import beam_search
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.model import CachedModel

LENGTHS = (1, 7, 3, 12, 7, 2, 30, 5)
ENDS = (3, 17, 40)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(97, (length,), generator=generator).tolist() for length in LENGTHS]


def config(beams: int = 4, penalty: float = 0.9, ngram: int = 0, longest: int = 16, batch: int = 64) -> DecodingConfig:
    return DecodingConfig(
        decoding="beam",
        beams=beams,
        length_penalty=penalty,
        no_repeat_ngram=ngram,
        max_new_tokens=longest,
        batch_size=batch,
    )


def generated(reference: Any, prompt: Sequence[int], end_id: int, wanted: DecodingConfig) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=wanted.max_new_tokens,
        num_beams=wanted.beams,
        length_penalty=wanted.length_penalty,
        do_sample=False,
        eos_token_id=end_id,
        pad_token_id=end_id,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found[: found.index(end_id)] if end_id in found else found


@pytest.mark.parametrize("beams", [2, 4, 10])
@pytest.mark.parametrize("penalty", [0.0, 0.9, 2.0])
def test_outputs_are_transformers_token_for_token(
    model: CachedModel, reference: Any, prompts: list[list[int]], beams: int, penalty: float
) -> None:
    for end_id in ENDS:
        wanted = config(beams, penalty)
        expected = [generated(reference, prompt, end_id, wanted) for prompt in prompts]
        assert decode(model, prompts, end_id, wanted) == expected


def test_outputs_do_not_depend_on_the_batch_and_end_at_different_lengths(
    model: CachedModel, prompts: list[list[int]]
) -> None:
    found = [[decode(model, prompts, end, config(batch=size)) for end in ENDS] for size in (1, 3, 64)]
    assert found[0] == found[1] == found[2]
    assert len({len(output) for outputs in found[0] for output in outputs}) > 3


def in_plain_python(
    reference: Any, prompt: Sequence[int], end_id: int, wanted: DecodingConfig
) -> tuple[list[int], float]:
    """No cache, no batch, no tensors of beams; the best output and its score."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, wanted.max_new_tokens + 1):
        found = []
        for total, tokens in beams:
            with torch.no_grad():
                logits = reference(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            chances = logits.log_softmax(dim=0).tolist()
            found += [(total + chance, [*tokens, token]) for token, chance in enumerate(chances)]
        found = [one for one in found if not repeats(one[1], wanted.no_repeat_ngram)]
        found = sorted(found, key=lambda one: -one[0])[: 2 * wanted.beams]
        ends = [one[1][-1] == end_id or length == wanted.max_new_tokens for one in found]
        best = [one for one, end in zip(found[: wanted.beams], ends, strict=False) if end]
        finished += [(total / length**wanted.length_penalty, tokens) for total, tokens in best]
        finished = sorted(finished, key=lambda one: -one[0])[: wanted.beams]
        beams = [one for one, end in zip(found, ends, strict=True) if not end][: wanted.beams]
        if not beams or (
            len(finished) == wanted.beams and beams[0][0] / length**wanted.length_penalty <= finished[-1][0]
        ):
            break
    return [token for token in finished[0][1] if token != end_id], finished[0][0]


def repeats(tokens: Sequence[int], n: int) -> bool:
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return n > 0 and len(set(grams)) < len(grams)


@pytest.mark.parametrize("ngram", [0, 1, 2, 3])
def test_no_ngram_comes_twice_among_an_output_s_own_tokens(
    model: CachedModel, reference: Any, prompts: list[list[int]], ngram: int
) -> None:
    wanted = config(beams=3, ngram=ngram, longest=10)
    chosen = [[*prompts[0], *prompts[0]], prompts[1], prompts[3]]
    found = decode(model, chosen, 17, wanted)
    assert found == [in_plain_python(reference, prompt, 17, wanted)[0] for prompt in chosen]
    assert not any(repeats(output, ngram) for output in found)


def test_without_the_rule_this_model_does_repeat_itself(model: CachedModel, prompts: list[list[int]]) -> None:
    assert any(repeats(output, 2) for output in decode(model, prompts, 96, config(longest=20)))


def test_the_score_is_at_least_the_greedy_output_s(
    model: CachedModel, reference: Any, prompts: list[list[int]]
) -> None:
    def chance(prompt: Sequence[int], output: Sequence[int]) -> float:
        with torch.no_grad():
            chances = reference(torch.tensor([[*prompt, *output]])).logits[0].log_softmax(dim=-1)
        return math.fsum(float(chances[len(prompt) - 1 + i, token]) for i, token in enumerate(output))

    wide = decode(model, prompts, 96, config(beams=10, penalty=0.0, longest=5))
    narrow = decode(model, prompts, 96, DecodingConfig(max_new_tokens=5))
    pairs = [(chance(p, a), chance(p, b)) for p, a, b in zip(prompts, wide, narrow, strict=True) if len(b) == 5]
    assert pairs
    assert all(a >= b - 1e-5 for a, b in pairs)


def test_more_beams_than_the_vocabulary_bears_are_refused(model: CachedModel) -> None:
    with pytest.raises(ConfigError, match=r"beams is 60 with 97 tokens\. Give 48 or less"):
        beam_search(model, [[1]], 5, 4, 60, 1.0, 0)
