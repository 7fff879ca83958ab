"""Sampling: the right distribution, and the same draws wherever they are made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.model import CachedModel
from torso.evaluation.sampling import Sampler

SAMPLE = DecodingConfig(decoding="sample", max_new_tokens=8)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(97, (length,), generator=generator).tolist() for length in (4, 1, 9, 4, 6)]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8), (0.9, 20, 0.5)]
)
def test_probabilities_are_those_of_transformers_processors(temperature: float, top_k: int, top_p: float) -> None:
    process: Any = pytest.importorskip("transformers").generation.logits_process
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 3.0
    expected = process.TemperatureLogitsWarper(temperature)(None, logits)
    expected = process.TopKLogitsWarper(top_k)(None, expected) if top_k else expected
    expected = process.TopPLogitsWarper(top_p)(None, expected) if top_p < 1.0 else expected
    weights, tokens = Sampler(temperature, top_k, top_p, 0).probabilities(logits)
    found = torch.zeros_like(weights).scatter(1, tokens, weights)
    torch.testing.assert_close(found.float(), expected.softmax(dim=1), rtol=1e-4, atol=1e-6)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    sampler, num = Sampler(1.0, 0, 1.0, seed=3), 4000
    counts = Counter(sampler.choose(logits, [number], 0)[0] for number in range(num))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        # four standard deviations
        assert abs(counts[token] / num - share) < 4.0 * (share * (1.0 - share) / num) ** 0.5


def test_what_is_left_out_is_never_drawn() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(2))
    likeliest = set(logits.topk(3).indices[0].tolist())
    assert {Sampler(5.0, 3, 1.0, 0).choose(logits, [number], 1)[0] for number in range(200)} == likeliest
    assert {Sampler(1.0, 0, 1e-9, 0).choose(logits, [number], 1)[0] for number in range(50)} == {int(logits.argmax())}


def test_outputs_depend_on_the_seed_and_not_on_the_batch(model: CachedModel, prompts: list[list[int]]) -> None:
    outputs = decode(model, prompts, 96, SAMPLE)
    assert decode(model, prompts, 96, SAMPLE) == outputs
    small = DecodingConfig(decoding="sample", max_new_tokens=8, batch_size=2)
    assert decode(model, prompts, 96, small) == outputs
    other = DecodingConfig(decoding="sample", max_new_tokens=8, sampling_seed=1)
    assert decode(model, prompts, 96, other) != outputs
    # two prompts that are equal do not get one output
    twice = decode(model, [prompts[0], prompts[0]], 96, SAMPLE)
    assert twice[0] != twice[1]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("top_p", 0.0), ("top_p", 1.5), ("temperature", 0.0), ("temperature", float("inf")), ("beams", 0)),
        *(("top_k", -1), ("length_penalty", float("nan")), ("length_penalty", float("inf")), ("length_penalty", 1e5)),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is {value}"):
        DecodingConfig(**{setting: value}).checked()  # type: ignore[arg-type]


def test_names_tell_settings_apart_that_give_other_outputs() -> None:
    assert DecodingConfig().name == ""
    assert DecodingConfig(decoding="beam").name == "beam10-lp0.9-ng4"
    assert DecodingConfig(decoding="sample", top_p=0.9, max_new_tokens=32).name == "sample0-t1-k0-p0.9-n32"
