"""Settings of the optimizer and of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torso.errors import ConfigError


def require(condition: bool, message: str, remedy: str) -> None:
    """Raise ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(message, remedy)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019)."""

    beta1: float = 0.9
    """Decay of the mean of the gradients."""
    beta2: float = 0.999
    """Decay of the mean of their squares."""
    eps: float = 1e-8
    """Added to the root of the mean of squares."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""

    def __post_init__(self) -> None:
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            require(0.0 <= beta < 1.0, f"{name} is {beta}", "Give a number from 0 up to, not including, 1.")
        require(0.0 < self.eps < math.inf, f"eps is {self.eps}", "Give a number above 0.")
        require(0.0 <= self.weight_decay < math.inf, f"weight_decay is {self.weight_decay}", "Give 0 or more.")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate as a function of the step."""

    learning_rate: float = 1e-3
    """The rate after warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Constant can always be extended; linear and cosine fall to `final_share` at the horizon."""
    warmup_steps: int = 0
    """Steps over which the rate rises linearly from 0."""
    horizon_epochs: float | None = None
    """Epochs after which a falling schedule ends; required by linear and cosine, and never stretched."""
    final_share: float = 0.0
    """Share of the rate that is left at the horizon."""

    def __post_init__(self) -> None:
        require(0.0 < self.learning_rate < math.inf, f"learning_rate is {self.learning_rate}", "Give a number above 0.")
        require(self.warmup_steps >= 0, f"warmup_steps is {self.warmup_steps}", "Give 0 or more.")
        require(0.0 <= self.final_share <= 1.0, f"final_share is {self.final_share}", "Give 0 to 1.")
        if self.schedule == "constant":
            require(self.horizon_epochs is None, "a constant schedule has no horizon", "Leave horizon_epochs out.")
        else:
            require(
                self.horizon_epochs is not None and self.horizon_epochs > 0,
                f"a {self.schedule} schedule needs a horizon, given {self.horizon_epochs}",
                "State --horizon-epochs, the total that you mean to train.",
            )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, in which batches, and how often state is saved."""

    epochs: int = 1
    """Recorded target; `torso resume --epochs` raises it."""
    seed: int = 0
    """Decides shuffles, dropout masks and initial adapters."""
    global_batch_size: int = 16
    """Sequences in one optimizer step."""
    micro_batch_size: int = 4
    """Sequences in one forward and backward."""
    max_grad_norm: float = 1.0
    """Clip the global norm over head, body and tail to this; 0 leaves it."""
    checkpoint_every_steps: int = 200
    """Save after this many steps, and at each epoch's end."""
    checkpoint_every_minutes: float = 10.0
    """Save after this many minutes too."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept, at least 2; the best one (see `best_step`) is kept besides."""
    keep_epochs: int = 5
    """Besides, the ends of so many newest epochs, to be scored on dev when training ends."""
    best_by: str = "perplexity"
    """Which score on dev decides which checkpoint is the best: perplexity, or a metric by its name."""

    def __post_init__(self) -> None:
        for name in ("epochs", "global_batch_size", "micro_batch_size", "checkpoint_every_steps"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}", "Give 1 or more.")
        require(
            self.global_batch_size % self.micro_batch_size == 0,
            f"global_batch_size {self.global_batch_size} is no multiple of micro_batch_size {self.micro_batch_size}",
            "Choose sizes where it is.",
        )
        require(self.max_grad_norm >= 0.0, f"max_grad_norm is {self.max_grad_norm}", "Give 0 (off) or more.")
        minutes = self.checkpoint_every_minutes
        require(minutes > 0, f"checkpoint_every_minutes is {minutes}", "Give a number above 0.")
        require(self.keep_epochs >= 0, f"keep_epochs is {self.keep_epochs}", "Give 0 or more.")
        require(self.keep_checkpoints >= 2, f"keep_checkpoints is {self.keep_checkpoints}", "Give 2 or more.")
