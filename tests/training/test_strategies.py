"""Every strategy against one rank that adds up alone: one start of four processes trains a matrix of cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "strategies.py"
SOURCE = Path(__file__).parents[2] / "src"
ADAPTERS, STRATEGIES = ("none", "dora"), ("ddp", "fsdp", "hsdp")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("strategies")
    words = [sys.executable, "-W", "error", str(PROGRAM)]
    ranks = [
        subprocess.Popen([*words, str(rank), str(folder)], stderr=subprocess.PIPE, env={"PYTHONPATH": str(SOURCE)})
        for rank in range(4)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 4, errors
    document: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_in_order_every_strategy_gives_the_bits_of_one_rank(
    found: dict[str, Any], adapter: str, strategy: str, ranks: int
) -> None:
    alone, together = found[f"{adapter} single"], found[f"{adapter} {strategy} {ranks}"]
    assert {n: together[n] for n in ("losses", "norms", "digest")} == {
        n: alone[n] for n in ("losses", "norms", "digest")
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_state_saved_under_one_strategy_goes_on_under_another(
    found: dict[str, Any], adapter: str, strategy: str, ranks: int
) -> None:
    assert found[f"{adapter} {strategy} {ranks}"]["resumed"] == found[f"{adapter} single"]["digest"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_fast_mode_differs_by_rounding_alone(
    found: dict[str, Any], adapter: str, strategy: str, ranks: int
) -> None:
    alone, together = found[f"{adapter} single"], found[f"{adapter} {strategy} {ranks} fast"]
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    # AdamW divides by the root of tiny second moments in its first steps
    assert together["apart"] < 5e-5
    assert together["sent"] < found[f"{adapter} {strategy} {ranks}"]["sent"]


@pytest.mark.parametrize("what", ["bf16", "fp16", "recompute"])
@pytest.mark.parametrize("strategy", ["ddp 2", "fsdp 2"])
def test_less_precision_and_recomputed_activations_give_one_ranks_bits_too(
    found: dict[str, Any], what: str, strategy: str
) -> None:
    assert found[f"{what} {strategy}"]["digest"] == found[f"{what} single 1"]["digest"]


def test_recomputed_activations_change_no_bits(found: dict[str, Any]) -> None:
    assert found["recompute single 1"]["digest"] == found["none single"]["digest"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_without_order_a_step_moves_what_the_textbook_says(found: dict[str, Any], ranks: int) -> None:
    """DDP: 2 (W - 1) / W of the gradients, once a step however many micro-batches it has."""
    steps, num_bytes = 3, 4 * found["none single"]["numel"]
    assert found[f"none ddp {ranks} fast"]["sent"] == pytest.approx(
        steps * 2 * (ranks - 1) / ranks * num_bytes, rel=1e-3
    )
