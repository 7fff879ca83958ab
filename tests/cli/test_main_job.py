"""The main job as real processes: serve, train, kill, stop, resume. The digest is always the unsplit run's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.split.harness import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = ("--adapter", "dora", "--lora-rank", "2", "--global-batch-size", "4", "--micro-batch-size", "2")
REST = ("--evaluate", "none", "--checkpoint-every-steps", "5", "--threads", "1")
# A proxy that nobody answers at must not matter, nor a number of threads that somebody exported.
ENVIRONMENT = os.environ | {
    "http_proxy": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "OMP_NUM_THREADS": "2",
}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "torso", *map(str, words)]


def torso(*words: str | Path) -> str:
    """Runs a command to its good end; returns what it printed."""
    done = subprocess.run(command(*words), env=ENVIRONMENT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest(run: Path) -> str:
    return str(json.loads(torso("digest", run, "--json"))["digest"])


@contextlib.contextmanager
def background(log: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "ab") as file:
        process = subprocess.Popen(command(*words), stdout=file, stderr=file, env=ENVIRONMENT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(90)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def steps(run: Path) -> int:
    log = run / "metrics.jsonl"
    return log.read_text().count('"step"') if log.exists() else 0


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that a command has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


@pytest.fixture(scope="module")
def settings(tiny_model: Path, tiny_data: str) -> tuple[str | Path, ...]:
    return ("--model", tiny_model, "--data", tiny_data, *SETTINGS, *REST)


@pytest.fixture(scope="module")
def whole(settings: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of two epochs in one process."""
    run = tmp_path_factory.mktemp("whole") / "run"
    torso("train", *settings, "--epochs", "2", "--run-dir", run)
    return digest(run)


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """Two workers as `torso serve` starts them."""
    port, log = free_ports(2), tmp_path / "server.log"
    with background(log, "serve", "--model", tiny_model, "--workers", "2", "--port", str(port)) as process:
        wait_for(lambda: "ready:" in log.read_text(), process, log)
        yield f"http://127.0.0.1:{port}", process, log
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


def test_kills_on_both_sides_do_not_change_the_outcome(
    settings: tuple[str | Path, ...], whole: str, server: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    (url, serving, _), run, log = server, tmp_path / "run", tmp_path / "client.log"
    split = ("--strategy", "split", "--server", url, "--clients", "2", "--epochs", "2", "--run-dir", run)
    with background(log, "train", *settings, *split) as client:
        wait_for(lambda: steps(run) >= 3, client, log)
        os.kill(ranks_of(client)[1], signal.SIGKILL)
        wait_for(lambda: "restarting the group" in log.read_text(), client, log)
        wait_for(lambda: steps(run) >= 8, client, log)
        os.kill(ranks_of(serving)[0], signal.SIGKILL)
        assert client.wait(200) == 0, log.read_text()
    assert digest(run) == whole


def test_a_run_stopped_by_ctrl_c_resumes_to_the_same_outcome(
    settings: tuple[str | Path, ...], whole: str, server: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    (url, _, _), run, log = server, tmp_path / "run", tmp_path / "client.log"
    split = ("--strategy", "split", "--server", url, "--clients", "2", "--epochs", "1", "--run-dir", run)
    with background(log, "train", *settings, *split) as client:
        wait_for(lambda: steps(run) >= 3, client, log)
        client.send_signal(signal.SIGINT)
        assert client.wait(90) == 0, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert last.startswith("torso: ")
    assert "torso resume" in last
    assert "Traceback" not in log.read_text()
    torso("resume", run, "--epochs", "1", "--clients", "1")
    assert digest(run) == whole


def test_a_killed_command_leaves_no_rank_and_its_run_resumes(
    settings: tuple[str | Path, ...], whole: str, server: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    (url, _, _), run, log = server, tmp_path / "run", tmp_path / "client.log"
    split = ("--strategy", "split", "--server", url, "--clients", "2", "--epochs", "2", "--run-dir", run)
    with background(log, "train", *settings, *split) as client:
        wait_for(lambda: steps(run) >= 3, client, log)
        client.kill()
    torso("resume", run)
    assert digest(run) == whole


def test_a_worker_that_freezes_is_replaced(
    settings: tuple[str | Path, ...], whole: str, tiny_model: Path, tmp_path: Path
) -> None:
    port, log, run, told = free_ports(2), tmp_path / "server.log", tmp_path / "run", tmp_path / "client.log"
    serve = ("serve", "--model", tiny_model, "--workers", "2", "--port", str(port), "--group-timeout-s", "5")
    split = ("--strategy", "split", "--server", f"http://127.0.0.1:{port}", "--epochs", "2", "--run-dir", run)
    with background(log, *serve) as serving:
        wait_for(lambda: "ready:" in log.read_text(), serving, log)
        with background(told, "train", *settings, *split) as client:
            wait_for(lambda: steps(run) >= 3, client, told)
            os.kill(ranks_of(serving)[-1], signal.SIGSTOP)
            assert client.wait(120) == 0, told.read_text()
    assert "has said nothing for 5 s" in log.read_text()
    assert digest(run) == whole
