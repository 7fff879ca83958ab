"""Two runs side by side: the same bits, or how far apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from torso.errors import RunDirectoryError
from torso.records import StepRecord
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import MetricsLog, RunDirectory

PARTS = ("losses", "grad_norms", "adapters", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The largest absolute difference of each of `PARTS`: 0.0 only for equal bits; infinite where shapes differ."""

    differences: dict[str, float]

    @property
    def equal(self) -> bool:
        """Whether everything has equal bits."""
        return all(value == 0.0 for value in self.differences.values())

    def describe(self) -> str:
        """For people."""
        if self.equal:
            return "equal bits"
        return ", ".join(f"{name} {value:.1e}" for name, value in self.differences.items() if value != 0.0)


def compare(first: Path, second: Path) -> Comparison:
    """Every step's loss and gradient norm, and the last adapters and optimizer; raises RunDirectoryError."""
    losses, norms = _steps(first)
    other_losses, other_norms = _steps(second)
    state, other = _state(first), _state(second)
    return Comparison(
        differences={
            "losses": _of_numbers(losses, other_losses),
            "grad_norms": _of_numbers(norms, other_norms),
            "adapters": _of_tensors(_adapters(state), _adapters(other)),
            "optimizer": _of_tensors(_optimizer(state), _optimizer(other)),
        }
    )


def _steps(path: Path) -> tuple[list[float], list[float]]:
    records = [record for record in MetricsLog(path).read() if isinstance(record, StepRecord)]
    return [record.loss for record in records], [record.grad_norm for record in records]


def _state(path: Path) -> dict[str, Tensor]:
    newest = checkpoints.load_newest(RunDirectory(path).checkpoints)
    if newest is None:
        raise RunDirectoryError(f"{path} has no checkpoint yet", "Train it first.")
    return newest.state


def _adapters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name.startswith("adapter:")}


def _optimizer(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.startswith("adapter:")}


def _of_numbers(first: list[float], second: list[float]) -> float:
    if not first or len(first) != len(second):
        return math.inf
    return max(_apart(a, b) for a, b in zip(first, second, strict=True))


def _apart(first: float, second: float) -> float:
    """Not a number is as far from everything as can be, from itself too."""
    return abs(first - second) if math.isfinite(first) and math.isfinite(second) else math.inf


def _of_tensors(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    if not first or first.keys() != second.keys():
        return math.inf
    return max(_of_pair(first[name], second[name]) for name in first)


def _of_pair(first: Tensor, second: Tensor) -> float:
    if first.shape != second.shape or first.dtype != second.dtype:
        return math.inf
    if first.numpy().tobytes() == second.numpy().tobytes():
        return 0.0
    # +0.0 and -0.0 differ in their bits, not in their values
    largest = float((first.double() - second.double()).abs().max())
    return max(largest, math.ulp(0.0)) if math.isfinite(largest) else math.inf
