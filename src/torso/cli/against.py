"""Predictions beside what a `torso compare` measured."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torso.cli import planning
from torso.config import RunConfig
from torso.planner.calibration import Calibration
from torso.planner.hardware import Device, Link
from torso.planner.predict import Prediction
from torso.planner.recommend import recommend
from torso.planner.setting import STRATEGIES, Setting, Strategy
from torso.records import StepRecord
from torso.report.comparison.read import TRIALS, read_comparison
from torso.report.comparison.trials import Comparison, Group, Result
from torso.report.log import read_records
from torso.report.units import number, size

CalibrationOf = Callable[[Setting], Calibration | None]


@dataclass(frozen=True, kw_only=True)
class Beside:
    """One strategy: predicted and measured."""

    strategy: Strategy
    predicted: Prediction
    measured_memory: float
    """Peak of the fullest process; not a number where it was not run."""
    save_memory: float
    """The same while checkpoints were written."""
    measured_seconds: float
    """Median of the steps after those that warm up."""
    base: float
    """Resident memory after imports, which is taken off both for the error."""

    @property
    def memory_error(self) -> float:
        """Relative, of what is above the imports."""
        measured = self.measured_memory - self.base
        return (self.predicted.step_memory_bytes - self.base) / measured - 1.0

    @property
    def time_error(self) -> float:
        """Relative."""
        return self.predicted.step_seconds / self.measured_seconds - 1.0

    def fits(self, limit: float) -> bool:
        """As measured, saves included."""
        return max(self.measured_memory, self.save_memory) <= limit


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One model with one number of processes."""

    model: str
    num_processes: int
    rows: Sequence[Beside]
    recommended: Strategy | None
    memory_limit: float

    @property
    def fastest(self) -> Strategy | None:
        """Of those that were measured and fit."""
        fitting = [row for row in self.rows if row.fits(self.memory_limit)]
        return min(fitting, key=lambda row: row.measured_seconds).strategy if fitting else None


def judge(path: Path, device: Device, link: Link, memory_limit: float, calibration_of: CalibrationOf) -> list[Judged]:
    """Every group of a comparison. Raises RunDirectoryError where there is none, ConfigError where nothing is known."""
    comparison = read_comparison(path)
    return [_judge(comparison, group, device, link, memory_limit, calibration_of) for group in comparison.groups]


def _judge(
    comparison: Comparison,
    group: Group,
    device: Device,
    link: Link,
    memory_limit: float,
    calibration_of: CalibrationOf,
) -> Judged:
    config = run_config(comparison, group.model)
    setting = planning.setting_of(config, planning.lengths_of(config), group.num_processes, device, link)
    setting = dataclasses.replace(setting, memory_limit=memory_limit)
    calibration = calibration_of(setting)
    found = planning.predictions(setting, calibration)
    base = 0.0 if calibration is None else calibration.import_bytes
    rows = [_beside(comparison, result, found, base) for result in group.done]
    measured = {row.strategy for row in rows}
    advice = recommend({name: found[name] for name in STRATEGIES if name in measured})
    return Judged(
        model=group.model,
        num_processes=group.num_processes,
        rows=rows,
        recommended=advice.strategy,
        memory_limit=memory_limit,
    )


def run_config(comparison: Comparison, model: str) -> RunConfig:
    """The settings that all trials of a model had."""
    known = {field.name for field in dataclasses.fields(RunConfig)}
    settings: dict[str, Any] = {name: value for name, value in comparison.settings.items() if name in known}
    settings |= {"model": model, "strategy": "single", "threads": int(comparison.machine["threads"])}
    return RunConfig(**settings)


def _beside(comparison: Comparison, result: Result, found: Mapping[Strategy, Prediction], base: float) -> Beside:
    strategy: Strategy = result.trial.strategy  # type: ignore[assignment]
    records = read_records(comparison.path / TRIALS / result.trial.name / "metrics.jsonl")[0]
    steps = [r for r in records if isinstance(r, StepRecord) and r.step > comparison.warm_up_steps]
    return Beside(
        strategy=strategy,
        predicted=found[strategy],
        measured_memory=result.largest(lambda epoch: epoch.memory_bytes),
        save_memory=float(result.save_memory_bytes),
        measured_seconds=statistics.median([s.seconds for s in steps]) if steps else math.nan,
        base=base,
    )


def text_of(judged: Sequence[Judged]) -> str:
    """Tables for people."""
    return "\n\n".join(_table(one) for one in judged)


def _table(one: Judged) -> str:
    title = f"{one.model}, {one.num_processes} process{'' if one.num_processes == 1 else 'es'}"
    head = f"{'':9s} {'memory':>9s} {'measured':>9s} {'error':>7s} {'step, s':>9s} {'measured':>9s} {'error':>7s}"
    lines = [title, head, *(_row(row) for row in one.rows)]
    lines.append(f"recommended {one.recommended or 'nothing'}, fastest that fits {one.fastest or 'nothing'}")
    return "\n".join(lines)


def _row(row: Beside) -> str:
    p = row.predicted
    predicted, measured = size(p.step_memory_bytes - row.base), size(row.measured_memory - row.base)
    memory = f"{predicted:>9s} {measured:>9s} {row.memory_error:>+7.1%}"
    seconds = f"{number(p.step_seconds):>9s} {number(row.measured_seconds):>9s} {row.time_error:>+7.1%}"
    return f"{row.strategy:9s} {memory} {seconds}"


def document_of(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "model": one.model,
            "num_processes": one.num_processes,
            "memory_limit": one.memory_limit,
            "recommended": one.recommended,
            "fastest": one.fastest,
            "strategies": {
                row.strategy: {
                    "memory_bytes": row.predicted.step_memory_bytes - row.base,
                    "measured_memory_bytes": row.measured_memory - row.base,
                    "measured_fits": row.fits(one.memory_limit),
                    "memory_error": row.memory_error,
                    "step_seconds": row.predicted.step_seconds,
                    "measured_step_seconds": row.measured_seconds,
                    "time_error": row.time_error,
                }
                for row in one.rows
            },
        }
        for one in judged
    ]
