from __future__ import annotations

import math

import pytest

from torso.planner.memory import Memory
from torso.planner.predict import Prediction
from torso.planner.recommend import Recommendation, recommend
from torso.planner.setting import STRATEGIES, Strategy
from torso.planner.times import Seconds

LIMIT = 10e9


def advice(memory: dict[Strategy, float], seconds: dict[Strategy, float], communication: float = 0.0) -> Recommendation:
    """On devices of 10 GB; strategies that are not named cannot be done."""
    found = {}
    for name in STRATEGIES:
        if name not in memory:
            found[name] = Prediction(strategy=name, refusal="it cannot")
            continue
        spent = Seconds(compute=seconds[name] - communication, update=0.0, communication=communication)
        rank = {"rank": Memory(weights=memory[name])}
        found[name] = Prediction(strategy=name, parties=rank, seconds=spent, memory_limit=LIMIT)
    return recommend(found)


def test_the_fastest_that_fits_is_taken() -> None:
    found = advice(
        {"single": 20e9, "ddp": 20e9, "fsdp": 9e9, "hsdp": 9e9}, {"single": 4, "ddp": 2, "fsdp": 3, "hsdp": 4}
    )
    assert found.strategy == "fsdp"
    assert "20.00 GB" in found.reasons["ddp"]
    assert "1.33 times" in found.reasons["fsdp"]


def test_of_equally_fast_ones_the_simplest_is_taken() -> None:
    found = advice({"single": 1e9, "ddp": 1e9, "fsdp": 1e9}, {"single": 2.0, "ddp": 1.01, "fsdp": 1.0})
    assert found.strategy == "ddp"
    assert "simpler" in found.reasons["fsdp"]


def test_two_devices_without_a_fast_link_lose_to_one() -> None:
    found = advice({"single": 1e9, "ddp": 1e9}, {"single": 19.6, "ddp": 30.0}, communication=15.0)
    assert found.strategy == "single"
    assert "link" in found.reasons["single"]
    assert "50% of its step is communication" in found.reasons["ddp"]


def test_only_what_fits_is_said_to_be_the_only_one() -> None:
    found = advice({"single": 20e9, "fsdp": 9e9}, {"single": 1.0, "fsdp": 5.0})
    assert found.strategy == "fsdp"
    assert found.reasons["fsdp"].startswith("The only one that fits")


def test_nothing_is_taken_where_nothing_fits() -> None:
    found = advice({"single": 20e9, "ddp": 20e9}, {"single": 1.0, "ddp": 1.0})
    assert found.strategy is None


@pytest.mark.parametrize("case", [{"single": 1e9}, {"single": 20e9, "split": 5e9}, {}])
def test_there_is_one_sentence_a_strategy(case: dict[Strategy, float]) -> None:
    reasons = advice(case, dict.fromkeys(case, 1.0)).reasons
    assert set(reasons) == set(STRATEGIES)
    assert all(text.endswith(".") and ". " not in text for text in reasons.values())


def test_a_strategy_that_cannot_be_done_has_no_figures() -> None:
    assert math.isnan(Prediction(strategy="split", refusal="it cannot").step_seconds)
