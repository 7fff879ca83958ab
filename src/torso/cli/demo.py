"""`torso demo`: the main job end to end on this machine, and two promises checked by digest.

Two body workers and two clients train one epoch, stop, and resume for one more; the same two epochs without a split
and without a stop, in one process beside them, must leave the same bits.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse
from torso.cli.processes import background, digest, make_out, run, server
from torso.errors import TorsoError

SETTINGS = Path(__file__).with_name("demo.toml")
LEAST_BLEU = 0.88
"""On MRs and names that training has not seen; less means that something is broken."""


@dataclass(frozen=True)
class DemoArguments:
    """Serve, train split, stop, resume, evaluate, and check the promises; about two minutes on two cores."""

    out: Path | None = None
    """Folder for the runs. Default: the first of runs/demo-001, runs/demo-002, … that is not there."""


def main(arguments: Sequence[str]) -> int:
    """Run it all; 1 when a check fails or the scores are poor."""
    from torso.cli.train import next_folder

    started = time.monotonic()
    out = make_out(parse(DemoArguments, "demo", arguments).out or next_folder(Path("runs"), "demo"))
    split, whole = out / "split", out / "whole"
    halfway = _train_both(out, split, whole)
    return _conclude(split, whole, halfway, started)


def _train_both(out: Path, split: Path, whole: Path) -> dict[str, object]:
    """The split run with its stop and its scores, the other beside it; returns the digest at the stop."""
    with ExitStack() as stack:
        reference = stack.enter_context(background(out / "whole.log", _train(whole, "single", 2)))
        url = stack.enter_context(server(out / "server.log", "mini", 2))
        _say("one epoch: two clients, two body workers")
        run(*_train(split, "split", 1), "--clients", "2", "--server", url)
        first = digest(split)
        _say("scores without the adapter")
        run("evaluate", split, "--subset", "test", "--base")
        _say("stopped; one more epoch")
        run("resume", split, "--epochs", "1")
        _say("scores with the adapter, decoded through the split")
        run("evaluate", split, "--subset", "test")
        _say("waiting for the unsplit, unstopped run of two epochs")
        _finish(reference, out / "whole.log")
    return first


def _conclude(split: Path, whole: Path, halfway: dict[str, object], started: float) -> int:
    """Checks, report and summary; the exit code."""
    from torso.report.log import read_run
    from torso.report.page import write_page
    from torso.report.summary import Check, print_summary
    from torso.report.tables import score

    both, half = digest(whole), digest(whole, step=halfway["step"])
    checks = [
        Check(name="split equals whole", left=str(halfway["digest"]), right=str(half["digest"])),
        Check(name="1 + 1 equals 2", left=str(digest(split)["digest"]), right=str(both["digest"])),
    ]
    write_page(split)
    outcome = read_run(split)
    print_summary(outcome, checks, seconds=time.monotonic() - started)
    bleu = score(outcome.after, "hf_bleu") or 0.0
    if bleu < LEAST_BLEU:
        print(f"torso: BLEU is {bleu:.3f} after fine-tuning, {LEAST_BLEU} was expected", file=sys.stderr)
    return 0 if bleu >= LEAST_BLEU and all(check.passed for check in checks) else 1


def _train(folder: Path, strategy: str, epochs: int) -> list[str]:
    words = ["train", "--config", str(SETTINGS), "--strategy", strategy, "--epochs", str(epochs)]
    return [*words, "--run-dir", str(folder)]


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def _finish(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait():
        raise TorsoError(f"the reference run ended with exit code {process.returncode}", f"See {log}.")
