from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torso.cli.comparison import compare
from torso.cli.main import main
from torso.records import StepRecord
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import MetricsLog, RunDirectory

STATE = {"adapter:a": torch.tensor([1.0, -0.0]), "exp_avg:a": torch.tensor([0.5, 2.0])}


def step_record(step: int, loss: float) -> StepRecord:
    numbers: dict[str, Any] = dict.fromkeys((field.name for field in dataclasses.fields(StepRecord)), 0)
    return StepRecord(**numbers | {"step": step, "loss": loss, "grad_norm": 1.0})


def make_run(path: Path, loss: float = 2.0, **changes: Tensor) -> Path:
    """A run of two steps with one checkpoint."""
    run = RunDirectory.create(path, "", 1)
    for step in (1, 2):
        MetricsLog(path).append(step_record(step, loss))
    checkpoints.save(run.checkpoints, 2, STATE | {k.replace("_a", ":a"): v for k, v in changes.items()}, {})
    return path


def test_runs_with_the_same_bits_are_equal(tmp_path: Path) -> None:
    found = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b"))
    assert found.equal
    assert found.describe() == "equal bits"


def test_the_largest_difference_is_named(tmp_path: Path) -> None:
    other = make_run(tmp_path / "b", loss=2.25, adapter_a=torch.tensor([1.0, 0.5]))
    found = compare(make_run(tmp_path / "a"), other)
    assert found.differences == {"losses": 0.25, "grad_norms": 0.0, "adapters": 0.5, "optimizer": 0.0}
    assert found.describe() == "losses 2.5e-01, adapters 5.0e-01"


def test_the_sign_of_a_zero_is_a_difference(tmp_path: Path) -> None:
    other = make_run(tmp_path / "b", adapter_a=torch.tensor([1.0, 0.0]))
    assert not compare(make_run(tmp_path / "a"), other).equal


def test_what_is_not_a_number_equals_nothing(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, loss=math.nan) for name in "ab")
    assert compare(first, second).differences["losses"] == math.inf


def test_missing_steps_and_other_shapes_are_infinitely_far(tmp_path: Path) -> None:
    other = make_run(tmp_path / "b", adapter_a=torch.zeros(3))
    MetricsLog(other).append(step_record(3, 2.0))
    found = compare(make_run(tmp_path / "a"), other)
    assert found.differences["losses"] == math.inf
    assert found.differences["adapters"] == math.inf


def test_an_unknown_promise_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "splitt"]) == 2
    assert "Choose among split, resume, survive" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_promises_hold_for_a_tiny_model(
    tiny_model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--model", str(tiny_model), "--data", tiny_data, "--max-examples", "16", "--most", "1")
    assert main(["verify", *small, "--out", str(tmp_path / "verify"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"]
    assert {row["promise"] for row in document["rows"]} == {"split", "resume"}
    assert all(row["equal"] and row["outcome"] == "equal bits" for row in document["rows"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_survives_kills_on_both_sides(
    tiny_model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--model", str(tiny_model), "--data", tiny_data, "--kills", "4", "--seed", "1")
    assert main(["verify", "survive", *small, "--out", str(tmp_path / "verify"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["equal"]
    assert "4 kills" in row["compared"]
