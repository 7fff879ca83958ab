"""`torso demo`: the main job end to end on this machine, and two promises checked by digest.

Two body workers and two clients train one epoch, stop, and resume for one more; the same two epochs without a split
and without a stop, in one process beside them, must leave the same bits.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse
from torso.errors import TorsoError
from torso.parallel.lifetime import die_with_parent

SETTINGS = Path(__file__).with_name("demo.toml")
READY_WITHIN_S = 120.0


@dataclass(frozen=True)
class DemoArguments:
    """Serve, train split, stop, resume, evaluate, and check the promises; about two minutes on two cores."""

    out: Path | None = None
    """Folder for the runs. Default: the first of runs/demo-001, runs/demo-002, … that is not there."""


def main(arguments: Sequence[str]) -> int:
    """Run it all; 1 when a check fails."""
    from torso.cli.train import next_folder
    from torso.report.log import read_run
    from torso.report.page import write_page
    from torso.report.summary import Check, print_summary

    started = time.monotonic()
    out = parse(DemoArguments, "demo", arguments).out or next_folder(Path("runs"), "demo")
    out.mkdir(parents=True, exist_ok=True)
    run, whole = out / "split", out / "whole"
    with ExitStack() as stack:
        reference = stack.enter_context(_background(out / "whole.log", _train(whole, "single", 2)))
        url = stack.enter_context(_server(out / "server.log"))
        _say("one epoch: two clients, two body workers")
        _torso(*_train(run, "split", 1), "--clients", "2", "--server", url)
        first = _digest(run)
        _say("scores without the adapter")
        _torso("evaluate", str(run), "--subset", "test", "--base")
        _say("stopped; one more epoch")
        _torso("resume", str(run), "--epochs", "1")
        _say("scores with the adapter, decoded through the split")
        _torso("evaluate", str(run), "--subset", "test")
        _say("waiting for the unsplit, unstopped run of two epochs")
        _finish(reference, out / "whole.log")
    both, half = _digest(whole), _digest(whole, step=first["step"])
    checks = [
        Check(name="split equals whole", left=str(first["digest"]), right=str(half["digest"])),
        Check(name="1 + 1 equals 2", left=str(_digest(run)["digest"]), right=str(both["digest"])),
    ]
    write_page(run)
    print_summary(read_run(run), checks, seconds=time.monotonic() - started)
    return 0 if all(check.passed for check in checks) else 1


def _train(folder: Path, strategy: str, epochs: int) -> list[str]:
    words = ["train", "--config", str(SETTINGS), "--strategy", strategy, "--epochs", str(epochs)]
    return [*words, "--run-dir", str(folder)]


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "torso", *words]


def _torso(*words: str) -> None:
    """Run a command as a user would; raises TorsoError when it fails."""
    done = subprocess.run(_command(*words), check=False)
    if done.returncode:
        raise TorsoError(f"`torso {words[0]}` ended with exit code {done.returncode}", "See its message above.")


def _digest(run: Path, step: object = None) -> dict[str, object]:
    words = ["digest", str(run), "--json"] + ([] if step is None else ["--step", str(step)])
    done = subprocess.run(_command(*words), check=True, capture_output=True, text=True)
    document: dict[str, object] = json.loads(done.stdout)
    return document


@contextmanager
def _background(log: Path, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs beside the others; ended at the latest when the block is left."""
    parent = os.getpid()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            _command(*words), stdout=file, stderr=file, preexec_fn=lambda: die_with_parent(parent)
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _finish(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait():
        raise TorsoError(f"the reference run ended with exit code {process.returncode}", f"See {log}.")


@contextmanager
def _server(log: Path) -> Iterator[str]:
    """Two body workers on free ports; yields their URL."""
    port = _free_port()
    with _background(log, ["serve", "--model", "mini", "--workers", "2", "--port", str(port)]) as process:
        deadline = time.monotonic() + READY_WITHIN_S
        while "ready:" not in log.read_text(encoding="utf-8", errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise TorsoError("the body server did not start", f"See {log}.")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"


def _free_port() -> int:
    """A port that is free together with the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
