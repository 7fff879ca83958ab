"""Every strategy against one rank that adds up alone: one start of four processes trains a matrix of cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "strategies.py"
SOURCE = Path(__file__).parents[2] / "src"
ADAPTERS, STRATEGIES = ("none", "dora"), ("ddp", "fsdp", "hsdp")
CASES = [(s, ranks) for s in STRATEGIES for ranks in ((2, 4) if s == "hsdp" else (1, 2, 3, 4))]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("strategies")
    words = [sys.executable, "-W", "error", str(PROGRAM)]
    environment = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    with open(folder / "errors", "wb") as errors, ExitStack() as stack:
        ranks = [
            stack.enter_context(subprocess.Popen([*words, str(rank), str(folder)], stderr=errors, env=environment))
            for rank in range(4)
        ]
        for rank in ranks:
            stack.callback(rank.kill)
        deadline = time.monotonic() + 500
        # one that has failed leaves the others waiting
        while not any(rank.poll() for rank in ranks) and None in [rank.returncode for rank in ranks]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert [rank.returncode for rank in ranks] == [0] * 4, (folder / "errors").read_text()[-5000:]
    document: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize(("strategy", "ranks"), CASES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_in_order_every_strategy_gives_the_bits_of_one_rank(
    found: dict[str, Any], adapter: str, strategy: str, ranks: int
) -> None:
    alone, together = found[f"{adapter} single"], found[f"{adapter} {strategy} {ranks}"]
    same = ("losses", "norms", "counts", "digest")
    assert {n: together[n] for n in same} == {n: alone[n] for n in same}


@pytest.mark.parametrize(("strategy", "ranks"), CASES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_state_saved_under_one_strategy_goes_on_under_another(
    found: dict[str, Any], adapter: str, strategy: str, ranks: int
) -> None:
    assert found[f"{adapter} {strategy} {ranks}"]["resumed"] == found[f"{adapter} single"]["digest"]


@pytest.mark.parametrize(("strategy", "ranks"), [case for case in CASES if case[1] > 1])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_fast_mode_differs_by_rounding_alone(
    found: dict[str, Any], adapter: str, strategy: str, ranks: int
) -> None:
    alone, together = found[f"{adapter} single"], found[f"{adapter} {strategy} {ranks} fast"]
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert together["counts"] == alone["counts"]
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


def test_one_rank_counts_every_token_once(found: dict[str, Any]) -> None:
    """Micro-batches of two sequences of nine tokens each: five, one and four of them."""
    assert [padded for _, _, padded in found["none single"]["counts"]] == [90, 18, 72]
    assert found["none single"]["counts"] == found["dora single"]["counts"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_epoch_with_fewer_examples_than_ranks_trains_as_one_rank_does(found: dict[str, Any], strategy: str) -> None:
    alone, together, fast = found["few single 1"], found[f"few {strategy} 4"], found[f"few {strategy} 4 fast"]
    assert (together["digest"], together["counts"]) == (alone["digest"], alone["counts"])
    assert (fast["losses"], fast["counts"]) == (pytest.approx(alone["losses"], rel=1e-6), alone["counts"])


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++")
@pytest.mark.parametrize("strategy", ["single 1", "fsdp 2"])
def test_compiled_blocks_give_the_losses_of_plain_ones(found: dict[str, Any], strategy: str) -> None:
    plain, compiled = found["plain single 1"], found[f"compile {strategy}"]
    assert plain["graphs"] == 0 < compiled["graphs"]
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    assert compiled["counts"] == plain["counts"]
