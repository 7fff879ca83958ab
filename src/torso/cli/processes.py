"""Torso's own commands as processes, for the commands that put several of them together: `demo` and `verify`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torso.errors import ConfigError, TorsoError
from torso.parallel.lifetime import die_with_parent
from torso.parallel.ports import free_ports

READY_WITHIN_S = 120.0
LAST_LINES = 3


def command(*words: str | Path) -> list[str]:
    """`torso WORDS` with this interpreter."""
    return [sys.executable, "-m", "torso", *map(str, words)]


def run(*words: str | Path, log: Path | None = None) -> None:
    """Run a command to its end, as a user would; what it prints goes to `log` or is shown. Raises TorsoError."""
    if log is None:
        done = subprocess.run(command(*words), check=False)
        remedy = "See its message above."
    else:
        with open(log, "ab") as file:
            done = subprocess.run(command(*words), stdout=file, stderr=file, check=False)
        remedy = f"Its last words: {last_words(log)}"
    if done.returncode:
        raise TorsoError(f"`torso {words[0]}` ended with exit code {done.returncode}", remedy)


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_words(log: Path) -> str:
    """The end of what a command printed, on one line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " / ".join(line.strip() for line in lines[-LAST_LINES:])


def make_out(folder: Path) -> Path:
    """The folder for a command's runs, made where it is not there; raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}", "Choose another --out.") from error
    return folder


def digest(folder: Path, step: object = None) -> dict[str, object]:
    """`torso digest`: the run, the step and the digest. Raises TorsoError."""
    words = ["digest", str(folder), "--json"] + ([] if step is None else ["--step", str(step)])
    done = subprocess.run(command(*words), check=False, capture_output=True, text=True)
    if done.returncode:
        raise TorsoError(f"`torso digest` ended with exit code {done.returncode}", f"It said: {done.stderr}")
    document: dict[str, object] = json.loads(done.stdout)
    return document


def logged_steps(run: Path) -> int:
    """How many steps a run's log holds now."""
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b'"kind": "step"') if log.exists() else 0


def start(log: Path, words: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    """A command that runs beside this one and ends with it at the latest; what it prints is added to `log`."""
    parent = os.getpid()
    with open(log, "ab") as file:
        return subprocess.Popen(command(*words), stdout=file, stderr=file, preexec_fn=lambda: die_with_parent(parent))


@contextmanager
def background(log: Path, words: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """The same, ended when the block is left."""
    process = start(log, words)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextmanager
def server(log: Path, model: str, workers: int, *words: str) -> Iterator[str]:
    """Body workers on free ports; yields their URL."""
    port = free_ports(workers)
    with background(log, serve(model, workers, port, *words)) as process:
        await_ready(process, log)
        yield f"http://127.0.0.1:{port}"


def serve(model: str, workers: int, port: int, *words: str) -> list[str]:
    """The words of `torso serve`."""
    return ["serve", "--model", model, "--workers", str(workers), "--port", str(port), *words]


def await_ready(process: subprocess.Popen[bytes], log: Path, from_byte: int = 0) -> None:
    """Return when the server says that it is ready; raises TorsoError."""
    deadline = time.monotonic() + READY_WITHIN_S
    while b"ready:" not in log.read_bytes()[from_byte:]:
        if process.poll() is not None or time.monotonic() > deadline:
            raise TorsoError("the body server did not start", f"Its last words: {last_words(log)}")
        time.sleep(0.1)
