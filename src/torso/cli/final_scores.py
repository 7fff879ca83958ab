"""What is measured by itself when training ends: every kept epoch on dev, and the outputs of the best and the last."""

from __future__ import annotations

import sys

from torso.cli.chosen import best_saved, chosen
from torso.cli.evaluate import evaluate_run
from torso.config import RunConfig
from torso.records import EpochRecord, EvaluationRecord
from torso.training import checkpoint as checkpoints
from torso.training.best import PERPLEXITY
from torso.training.run_directory import MetricsLog, RunDirectory


def score_run(run: RunDirectory, config: RunConfig, subset: str) -> None:
    """Decode and score the last checkpoint; on dev also measure earlier epochs, and decode the best of them.

    An epoch that the log has measured already is not measured again.
    """
    last = chosen(run)
    evaluate_run(run, config, subset, last)
    if subset != "dev":
        return
    decode = config.best_by != PERPLEXITY
    for step in _unmeasured(run):
        evaluate_run(run, config, subset, checkpoints.load(run.checkpoints, step), decode=decode)
    best = best_saved(run)
    if best is None:
        return
    if best != last.step and best not in _decoded(run):
        evaluate_run(run, config, subset, checkpoints.load(run.checkpoints, best))
    print(f"best by {config.best_by} on dev: step {best}; last: step {last.step}", file=sys.stderr)


def _unmeasured(run: RunDirectory) -> list[int]:
    """Ends of epochs whose checkpoints are kept and whole."""
    log = MetricsLog(run.path)
    ends = {record.step for record in log.read(EpochRecord)}
    measured = {record.step for record in _on_dev(log)}
    saved = checkpoints.steps(run.checkpoints)
    return [s for s in saved if s in ends and s not in measured and checkpoints.is_whole(run.checkpoints, s)]


def _decoded(run: RunDirectory) -> set[int]:
    return {record.step for record in _on_dev(MetricsLog(run.path)) if record.scores}


def _on_dev(log: MetricsLog) -> list[EvaluationRecord]:
    records = [r for r in log.read(EvaluationRecord) if isinstance(r, EvaluationRecord)]
    return [r for r in records if r.subset == "dev" and r.adapted and not r.partial]
