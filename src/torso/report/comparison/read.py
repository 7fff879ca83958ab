"""Reads the directory of a comparison; nothing here writes.

request.json      what was asked for, and the machine      trials/NAME.json     how a trial ended
trials/NAME/      its run directory                        trials/NAME.log      what it printed
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torso.errors import RunDirectoryError
from torso.records import EvaluationRecord, Record, SaveRecord, StepRecord, grad_norms
from torso.report.comparison.trials import (
    DONE,
    MISSING,
    Comparison,
    EpochFigures,
    Result,
    Trial,
    trials,
)
from torso.report.log import read_records

REQUEST, TRIALS = "request.json", "trials"


def is_comparison(path: Path) -> bool:
    """Whether a `torso compare` made this directory."""
    return (path / REQUEST).is_file()


def read_comparison(path: Path) -> Comparison:
    """As far as it has come; raises RunDirectoryError where there is none, or it cannot be read."""
    request = read_request(path)
    try:
        wanted = trials(request["strategies"], list(request["models"]), request["world_sizes"])
        warm_up = int(request["warm_up_steps"])
        return Comparison(
            path=path,
            strategies=request["strategies"],
            models=request["models"],
            world_sizes=request["world_sizes"],
            warm_up_steps=warm_up,
            settings=request["settings"],
            machine=request["machine"],
            on_gpu=bool(request["on_gpu"]),
            results={trial: read_result(path, trial, warm_up) for trial in wanted},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from None


def read_request(path: Path) -> dict[str, Any]:
    """What was asked for. Raises RunDirectoryError."""
    if not is_comparison(path):
        raise RunDirectoryError(f"{path} holds no comparison", "Give the --out of a `torso compare`.")
    try:
        request: dict[str, Any] = json.loads((path / REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return request


def _unreadable(path: Path, error: Exception) -> RunDirectoryError:
    return RunDirectoryError(f"{path / REQUEST} cannot be read: {error!r}", "Compare anew with another --out.")


def read_result(path: Path, trial: Trial, warm_up_steps: int) -> Result:
    """How a trial ended, and its figures; a trial without a word of its end has not been run."""
    try:
        ended = json.loads((path / TRIALS / f"{trial.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Result(trial=trial, state=MISSING)
    records = read_records(path / TRIALS / trial.name / "metrics.jsonl")[0] if ended["state"] == DONE else []
    return Result(
        trial=trial,
        state=ended["state"],
        reason=ended.get("reason", ""),
        parties=ended.get("parties", ""),
        num_copies=ended.get("num_copies", 0),
        wall_seconds=ended.get("wall_seconds", 0.0),
        others_cores=ended.get("others_cores", 0.0),
        save_seconds=sum(r.seconds for r in records if isinstance(r, SaveRecord)),
        save_memory_bytes=max((r.memory_bytes for r in records if isinstance(r, SaveRecord)), default=0),
        evaluation_seconds=sum(r.seconds for r in records if isinstance(r, EvaluationRecord)),
        epochs=epoch_figures(records, warm_up_steps, ended.get("num_ranks", 1), ended.get("num_workers", 0)),
    )


def epoch_figures(
    records: Iterable[Record], warm_up_steps: int, num_ranks: int, num_workers: int
) -> tuple[EpochFigures, ...]:
    """Of each epoch in a trial's log."""
    by_epoch: dict[int, list[StepRecord]] = {}
    for record in records:
        if isinstance(record, StepRecord):
            by_epoch.setdefault(record.epoch, []).append(record)
    return tuple(_figures(by_epoch[epoch], warm_up_steps, num_ranks, num_workers) for epoch in sorted(by_epoch))


def _figures(steps: Sequence[StepRecord], warm_up_steps: int, num_ranks: int, num_workers: int) -> EpochFigures:
    timed = [step for step in steps if step.step > warm_up_steps]
    targets, norms = sum(step.target_tokens for step in steps), grad_norms(steps)
    ranks = max(s.memory_bytes for s in steps), max(s.server_memory_bytes for s in steps)
    return EpochFigures(
        epoch=steps[0].epoch,
        num_steps=len(steps),
        target_tokens=targets,
        loss=sum(s.loss * s.target_tokens for s in steps) / max(1, targets),
        grad_norm_mean=sum(norms) / len(norms),
        grad_norm_max=max(norms),
        seconds=sum(s.seconds for s in timed),
        warm_up_seconds=sum(s.seconds for s in steps if s.step <= warm_up_steps),
        timed_real_tokens=sum(s.real_tokens for s in timed),
        timed_padded_tokens=sum(s.padded_tokens for s in timed),
        memory_bytes=max(ranks),
        memory_sum_bytes=(max(s.memory_sum_bytes for s in steps) or ranks[0] * num_ranks) + ranks[1] * num_workers,
        bytes_sent=sum(s.bytes_sent_max or s.bytes_sent // num_ranks for s in steps),
        bytes_received=sum(s.bytes_received_max or s.bytes_received // num_ranks for s in steps),
    )
