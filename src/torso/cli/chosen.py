"""Which of a run's checkpoints a command works on: `last`, `best`, or a step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torso.config import RunConfig
from torso.errors import RunDirectoryError
from torso.records import EpochRecord, EvaluationRecord
from torso.training import checkpoint as checkpoints
from torso.training.best import best
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import MetricsLog, RunDirectory

if TYPE_CHECKING:
    from torso.cli.assembly import Assembly


def chosen(run: RunDirectory, which: str = "last") -> Checkpoint:
    """The checkpoint; damaged ones that are passed over are named on stderr. Raises RunDirectoryError."""
    if not checkpoints.steps(run.checkpoints):
        raise RunDirectoryError(f"{run.path} has no checkpoint yet", "Train it first.")
    if which != "last":
        return checkpoints.load(run.checkpoints, _step(run, which))
    checkpoint = checkpoints.load_newest(run.checkpoints)
    assert checkpoint is not None
    for warning in checkpoint.warnings:
        print(f"torso: warning: {warning}", file=sys.stderr)
    return checkpoint


def best_saved(run: RunDirectory) -> tuple[int, str] | None:
    """The step of the best checkpoint, and by what: the run's own measure where it is known. None without any."""
    best_by = RunConfig.from_toml(run.path / "config.toml").best_by
    records = MetricsLog(run.path).read(EpochRecord, EvaluationRecord)
    return best(records, checkpoints.steps(run.checkpoints), best_by)


def check_base(assembly: Assembly, checkpoint: Checkpoint) -> None:
    """Raise RunDirectoryError when tokenizer or base weights are others than those that were trained on."""
    ours = assembly.base_identity
    names = {"tokenizer": "tokenizer", "ends": "base weights", "embeddings": "embeddings and final norm"}
    for name, what in names.items():
        if checkpoint.info.get(name, ours[name]) != ours[name]:
            raise RunDirectoryError(
                f"{what} of {assembly.config.model}: not what the checkpoint of step {checkpoint.step} was trained on",
                "Restore what was there.",
            )


def _step(run: RunDirectory, which: str) -> int:
    saved = checkpoints.steps(run.checkpoints)
    if which == "best":
        found = best_saved(run)
        if found is None:
            raise RunDirectoryError(
                f"nothing is known yet of the checkpoints of {run.path}", "Train an epoch, or evaluate on dev."
            )
        return found[0]
    if not which.isdigit() or int(which) not in saved:
        there = ", ".join(map(str, saved))
        raise RunDirectoryError(f"{run.path} has no checkpoint {which!r}", f"Give last, best, or one of {there}.")
    return int(which)
