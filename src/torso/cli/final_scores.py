"""What is measured by itself when training ends: every kept epoch on dev, and the outputs of the best and the last."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from torso.cli.assembly import Assembly
from torso.cli.chosen import best_saved, chosen
from torso.cli.evaluate import evaluate_run
from torso.config import RunConfig
from torso.errors import CheckpointError
from torso.records import EpochRecord, EvaluationRecord
from torso.training import checkpoint as checkpoints
from torso.training.best import PERPLEXITY
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import MetricsLog, RunDirectory


def score_run(run: RunDirectory, config: RunConfig, subset: str) -> None:
    """Decode and score the last checkpoint; on dev also measure earlier epochs, and decode the best of them.

    An epoch that the log has measured already is not measured again.
    """
    assembly, last = Assembly(config), chosen(run)
    evaluate_run(run, assembly, subset, last)
    if subset != "dev":
        return
    decode = config.best_by != PERPLEXITY
    for checkpoint in _unmeasured(run):
        evaluate_run(run, assembly, subset, checkpoint, decode=decode)
    found = best_saved(run)
    if found is None:
        return
    best, measure = found
    if best != last.step and not any(record.scores for record in _on_dev(run) if record.step == best):
        evaluate_run(run, assembly, subset, checkpoints.load(run.checkpoints, best))
    why = "" if measure == config.best_by else f" (there is no {config.best_by})"
    print(f"best by {measure} on dev{why}: step {best}; last: step {last.step}", file=sys.stderr)


def _unmeasured(run: RunDirectory) -> Iterator[Checkpoint]:
    """Ends of epochs whose checkpoints are kept and whole."""
    ends = {record.step for record in MetricsLog(run.path).read(EpochRecord)}
    measured = {record.step for record in _on_dev(run)}
    for step in checkpoints.steps(run.checkpoints):
        if step in ends and step not in measured:
            with contextlib.suppress(CheckpointError):
                yield checkpoints.load(run.checkpoints, step)


def _on_dev(run: RunDirectory) -> list[EvaluationRecord]:
    records = MetricsLog(run.path).read(EvaluationRecord)
    return [r for r in records if isinstance(r, EvaluationRecord) and r.can_choose]
