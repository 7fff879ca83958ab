"""What one trial (one strategy, model and number of processes) measured, and how all of a comparison fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DONE, FAILED, NOT_APPLICABLE, MISSING = "done", "failed", "not applicable", "not run yet"
TOLERANCE = 1e-4
"""Largest relative difference of losses between strategies, in fp32 without dropout."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strategy on one model with one number of processes."""

    model: str
    strategy: str
    num_processes: int
    """Asked for; single always has one, and a split at least two."""

    @property
    def name(self) -> str:
        """Stem of its files."""
        return f"{Path(self.model).name}-{self.strategy}-{self.num_processes}"


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """One epoch. Times and throughput leave out the steps that warm up; everything else has all steps."""

    epoch: int
    num_steps: int
    target_tokens: int
    loss: float
    """Total loss / total target tokens."""
    grad_norm_mean: float
    grad_norm_max: float
    seconds: float
    warm_up_seconds: float
    timed_real_tokens: int
    timed_padded_tokens: int
    memory_bytes: int
    """Largest of any rank in a step of the epoch; in a split of client ranks, and of workers so far."""
    memory_sum_bytes: int
    """Of all ranks together, each at its own peak; of a split's workers at most this: the largest by their number."""
    bytes_sent: int
    """By one rank: the most that any sent."""
    bytes_received: int

    @property
    def real_tokens_per_second(self) -> float:
        """Without padding; not a number when all steps warmed up."""
        return self.timed_real_tokens / self.seconds if self.seconds else math.nan

    @property
    def padded_tokens_per_second(self) -> float:
        """With padding."""
        return self.timed_padded_tokens / self.seconds if self.seconds else math.nan


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial and what came of it."""

    trial: Trial
    state: str
    reason: str = ""
    parties: str = ""
    """Its processes, e.g. `2`, `1 + 1` (client ranks and workers), `2 x 2` (copies and the ranks that share one)."""
    num_copies: int = 0
    """Of the model under hsdp; 0 for other strategies."""
    wall_seconds: float = 0.0
    """From the start of its first process to the end of its last."""
    others_cores: float = 0.0
    """How many cores other programs used while it ran, the mean."""
    save_seconds: float = 0.0
    save_memory_bytes: int = 0
    """Peak of the rank that writes checkpoints, meanwhile."""
    evaluation_seconds: float = 0.0
    epochs: tuple[EpochFigures, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it has figures."""
        return self.state == DONE and bool(self.epochs)

    @property
    def loss(self) -> float:
        """Over all epochs: total loss / total target tokens."""
        targets = sum(e.target_tokens for e in self.epochs)
        return sum(e.loss * e.target_tokens for e in self.epochs) / max(1, targets)

    @property
    def grad_norm_mean(self) -> float:
        """Over all steps."""
        return sum(e.grad_norm_mean * e.num_steps for e in self.epochs) / max(1, self.num_steps)

    @property
    def num_steps(self) -> int:
        """Updates."""
        return sum(e.num_steps for e in self.epochs)

    @property
    def seconds(self) -> float:
        """Training alone, without the steps that warm up."""
        return sum(e.seconds for e in self.epochs)

    @property
    def warm_up_seconds(self) -> float:
        """The first steps."""
        return sum(e.warm_up_seconds for e in self.epochs)

    @property
    def other_seconds(self) -> float:
        """Start-up of processes, reading of data and weights, and the end."""
        spent = self.seconds + self.warm_up_seconds + self.save_seconds + self.evaluation_seconds
        return max(0.0, self.wall_seconds - spent)

    @property
    def real_tokens_per_second(self) -> float:
        """Without padding."""
        return sum(e.timed_real_tokens for e in self.epochs) / self.seconds if self.seconds else math.nan

    @property
    def padded_tokens_per_second(self) -> float:
        """With padding."""
        return sum(e.timed_padded_tokens for e in self.epochs) / self.seconds if self.seconds else math.nan

    def largest(self, of: Callable[[EpochFigures], float]) -> float:
        """Of all epochs."""
        return max((of(epoch) for epoch in self.epochs), default=math.nan)

    @property
    def sent_a_step(self) -> float:
        """Bytes that a rank sent in a step, the mean."""
        return sum(e.bytes_sent for e in self.epochs) / max(1, self.num_steps)

    @property
    def received_a_step(self) -> float:
        """Bytes that a rank received in a step, the mean."""
        return sum(e.bytes_received for e in self.epochs) / max(1, self.num_steps)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The strategies that stand side by side: one model, one number of processes."""

    model: str
    num_processes: int
    results: tuple[Result, ...]
    """In the order asked for; single's is the same in all groups of a model."""

    @property
    def name(self) -> str:
        """Stem of its plots."""
        return f"{Path(self.model).name}-{self.num_processes}"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.model}, {self.num_processes} process{'' if self.num_processes == 1 else 'es'}"

    @property
    def done(self) -> list[Result]:
        """Those with figures."""
        return [result for result in self.results if result.done]

    def of(self, strategy: str) -> Result | None:
        """The strategy's, where it has figures."""
        return next((result for result in self.done if result.trial.strategy == strategy), None)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison's directory, as far as it has come."""

    path: Path
    strategies: Sequence[str]
    models: Mapping[str, int]
    """Numbers of parameters by model."""
    world_sizes: Sequence[int]
    warm_up_steps: int
    settings: Mapping[str, Any]
    """Of training, the same for all trials."""
    machine: Mapping[str, str]
    on_gpu: bool
    results: Mapping[Trial, Result] = field(default_factory=dict)

    @property
    def groups(self) -> list[Group]:
        """By model, then by number of processes."""
        return [self._group(model, size) for model in self.models for size in self.world_sizes]

    def _group(self, model: str, size: int) -> Group:
        chosen = trials(self.strategies, [model], [size])
        return Group(model=model, num_processes=size, results=tuple(self.results[trial] for trial in chosen))

    @property
    def is_exact(self) -> bool:
        """Whether losses are expected to agree within TOLERANCE."""
        dropouts = [self.settings.get(name) for name in ("dropout", "adapter_dropout")]
        return self.settings.get("dtype") == "fp32" and not any(dropouts)

    def differences(self, model: str) -> list[float]:
        """By epoch, the largest relative difference of the losses of any two trials of a model."""
        done = [r for r in self.results.values() if r.done and r.trial.model == model]
        if len(done) < 2:
            return []
        return [_spread(losses) for losses in zip(*([e.loss for e in r.epochs] for r in done), strict=True)]

    @property
    def largest_difference(self) -> float:
        """Over all models and epochs; not a number where nothing can be compared."""
        return max((d for model in self.models for d in self.differences(model)), default=math.nan)

    @property
    def agrees(self) -> bool | None:
        """Whether the losses agree; None where that is not expected or cannot be said."""
        if not self.is_exact or not any(self.differences(model) for model in self.models):
            return None
        return self.largest_difference <= TOLERANCE


def trials(strategies: Sequence[str], models: Sequence[str], world_sizes: Sequence[int]) -> list[Trial]:
    """All of a comparison, each once, in the order in which they run; single has one process whatever was asked."""
    wanted = [
        Trial(model=model, strategy=strategy, num_processes=1 if strategy == "single" else size)
        for model in models
        for size in world_sizes
        for strategy in strategies
    ]
    return list(dict.fromkeys(wanted))


def _spread(losses: Sequence[float]) -> float:
    """Relative to the largest; infinite when one is not finite."""
    if not all(map(math.isfinite, losses)):
        return math.inf
    return (max(losses) - min(losses)) / max(max(map(abs, losses)), math.ulp(0.0))
