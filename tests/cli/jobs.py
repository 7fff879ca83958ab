"""Torso's commands as real processes, as a user starts them."""

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

from torso import faults

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
def background(log: Path, *words: str | Path, plan: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is asked to end when the block is left; `plan` is a folder of planned faults."""
    environment = ENVIRONMENT if plan is None else ENVIRONMENT | {faults.VARIABLE: str(plan)}
    with open(log, "ab") as file:
        process = subprocess.Popen(command(*words), stdout=file, stderr=file, env=environment)
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
    return log.read_text().count('"kind": "step"') if log.exists() else 0


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that a command has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


@contextlib.contextmanager
def serving(
    model: Path, port: int, log: Path, workers: int = 2, plan: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`torso serve`, ready."""
    words = ("serve", "--model", model, "--workers", str(workers), "--port", str(port))
    already = log.read_text().count("ready:") if log.exists() else 0
    with background(log, *words, plan=plan) as process:
        wait_for(lambda: log.read_text().count("ready:") > already, process, log)
        yield process


def kill(*processes: subprocess.Popen[bytes]) -> list[int]:
    """SIGKILL to the commands and to all that they started, at once; returns who that was."""
    everybody = [pid for process in processes for pid in (*ranks_of(process), process.pid)]
    for pid in everybody:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return everybody


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a remainder that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def have_ended(pids: list[int], within_s: float = 10.0) -> bool:
    """Whether none of these processes runs any more, now or soon."""
    deadline = time.monotonic() + within_s
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))
