"""The three scripts at the root, in their order, from a folder that is not this one's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torso.cli.processes import digest
from torso.parallel.ports import free_ports

ROOT = Path(__file__).parents[2]
SCRIPTS = ("server_launch.sh", "client_launch.sh", "load_launch.sh")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the scripts need of a clone that was set up."""
    for name in SCRIPTS:
        shutil.copy(ROOT / name, tmp_path)
    for name in ("scripts", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    torso = tmp_path / ".venv/bin/torso"
    torso.parent.mkdir(parents=True)
    torso.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torso "$@"\n', encoding="utf-8")
    torso.chmod(0o755)
    return tmp_path


@pytest.fixture
def environment(clone: Path, tiny_model: Path, tiny_data: str) -> Iterator[dict[str, str]]:
    """A tiny model at free ports; what the server's script started is ended in any case."""
    small = {"TORSO_MODEL": str(tiny_model), "TORSO_DATA": tiny_data, "TORSO_PORT": str(free_ports(2))}
    # a rank's settings, should the tests themselves run under a launcher, are none of the scripts'
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TORSO_")} | small
    yield variables
    run(clone, variables, "server_launch.sh", "stop")


def run(clone: Path, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(clone / words[0]), *words[1:]]
    return subprocess.run(command, env=variables, cwd="/", check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_they_serve_train_and_resume(clone: Path, environment: dict[str, str]) -> None:
    started = run(clone, environment, "server_launch.sh")
    assert started.returncode == 0, started.stderr
    assert "ready: blocks 1 to 2" in started.stdout
    assert int((clone / "runs/server/server.pid").read_text()) > 0
    assert "already running" in run(clone, environment, "server_launch.sh").stderr
    other = run(clone, environment | {"TORSO_WORKERS": "1"}, "server_launch.sh")
    assert (other.returncode, "other settings" in other.stderr) == (2, True)

    for number in (1, 2):
        trained = run(clone, environment, "client_launch.sh", "--evaluate", "none")
        assert trained.returncode == 0, trained.stderr
        assert f"runs/split-00{number}" in trained.stderr
    assert "split-001 holds an earlier run" in trained.stderr

    resumed = run(clone, environment, "load_launch.sh")
    assert resumed.returncode == 0, resumed.stderr
    assert digest(clone / "runs/split-001")["step"] == 6
    assert digest(clone / "runs/split-002")["step"] == 12

    assert "has stopped" in run(clone, environment, "server_launch.sh", "stop").stderr
    assert not (clone / "runs/server/server.pid").exists()


def test_without_a_run_there_is_nothing_to_resume(clone: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TORSO_")}
    done = run(clone, variables, "load_launch.sh")
    assert (done.returncode, "client_launch.sh" in done.stderr) == (2, True)
    assert run(clone, variables, "server_launch.sh", "status").returncode == 2
    assert "no body server of ours" in run(clone, variables, "server_launch.sh", "stop").stderr


@pytest.mark.slow
def test_a_server_that_cannot_start_is_reported_with_its_exit_code(clone: Path, environment: dict[str, str]) -> None:
    done = run(clone, environment | {"TORSO_LAYERS": "3:1"}, "server_launch.sh")
    assert done.returncode == 2
    assert "3:1" in done.stderr
    assert not (clone / "runs/server/server.pid").exists()
