"""Faults on purpose: what a plan may say, and that each of its lines happens once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torso import faults
from torso.errors import ConfigError
from torso.faults import Faults, InjectedFault


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.arm(None)


def armed(folder: Path, *lines: str) -> list[str]:
    """Arms a plan; returns who will have been killed."""
    killed: list[str] = []
    faults.write_plan(folder / "plan", lines)
    faults.arm(Faults(folder / "plan", killed.append))
    return killed


def test_nothing_happens_unless_faults_are_armed() -> None:
    faults.reach("client", 0, "commit.after", 3)


def test_a_fault_happens_at_its_party_point_and_step_only(tmp_path: Path) -> None:
    killed = armed(tmp_path, "kill worker-1 commit.after@3")
    for side, rank, point, step in (
        ("worker", 0, "commit.after", 3),
        ("client", 1, "commit.after", 3),
        ("worker", 1, "commit.before", 3),
        ("worker", 1, "commit.after", 2),
    ):
        faults.reach(side, rank, point, step)
    assert killed == []
    faults.reach("worker", 1, "commit.after", 3)
    assert killed == ["worker-1"]
    assert faults.hits(tmp_path / "plan") == [1]


def test_a_fault_happens_once_even_if_the_process_starts_again(tmp_path: Path) -> None:
    killed = armed(tmp_path, "kill client-* forward.before")
    faults.reach("client", 1, "forward.before", 1)
    faults.arm(Faults(tmp_path / "plan", killed.append))
    faults.reach("client", 0, "forward.before", 1)
    assert killed == ["client-1"]


def test_around_a_block_that_fails_only_the_first_point_is_reached(tmp_path: Path) -> None:
    killed = armed(tmp_path, "kill worker-0 state.before", "kill worker-0 state.after")
    with pytest.raises(KeyError), faults.around("worker", 0, "state"):
        raise KeyError
    assert killed == ["worker-0"]
    with faults.around("worker", 0, "state"):
        pass
    assert killed == ["worker-0", "worker-0"]


def test_a_fault_may_raise_or_delay(tmp_path: Path) -> None:
    armed(tmp_path, "raise worker-0 prepare.after@1", "delay:0.2 worker-0 prepare.after@2")
    with pytest.raises(InjectedFault, match=r"worker-0 prepare\.after"):
        faults.reach("worker", 0, "prepare.after", 1)
    start = time.monotonic()
    faults.reach("worker", 0, "prepare.after", 2)
    assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGINT)])
def test_the_environment_switches_faults_on_in_a_process(tmp_path: Path, action: str, number: int) -> None:
    faults.write_plan(tmp_path / "plan", [f"{action} client-0 update.after@2"])
    reach = "faults.reach('client', 0, 'update.after', step)"
    code = f"from torso import faults\nfor step in (1, 2): print(step, flush=True); {reach}"
    environment = os.environ | {faults.VARIABLE: str(tmp_path / "plan")}
    environment.pop("TORSO_PARENT", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-number, "1\n2\n")


@pytest.mark.parametrize(
    "line",
    [
        "explode worker-0 commit.after",
        "kill commit.after",
        "kill worker-0 commit.between",
        "kill worker-0 checkpoint.state",
        "kill client-0 stage.before",
        "delay worker-0 commit.after",
        "kill worker-x commit.after",
        "kill worker-0 commit.after@-1",
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 of the plan of faults"):
        faults.write_plan(tmp_path / "plan", ["kill worker-0 commit.after", line])


def test_every_point_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "faults.md").read_text(encoding="utf-8")
    words = {phase for points in faults.POINTS.values() for point in points for phase in [point.partition(".")[0]]}
    assert all(f"`{word}" in page for word in words)
