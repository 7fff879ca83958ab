"""The learning rate as a function of the step alone, so that there is no schedule state to save."""

from __future__ import annotations

import math

from torso.errors import ConfigError
from torso.training.config import ScheduleConfig


def learning_rate(config: ScheduleConfig, step: int, steps_per_epoch: int) -> float:
    """The rate of update `step` (from 1)."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    horizon = horizon_steps(config, steps_per_epoch)
    progress = min(1.0, (step - config.warmup_steps) / max(1, horizon - config.warmup_steps))
    falling = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_share + (1.0 - config.final_share) * falling)


def horizon_steps(config: ScheduleConfig, steps_per_epoch: int) -> int:
    """Last step of a falling schedule."""
    return round((config.horizon_epochs or 0.0) * steps_per_epoch)


def check_target(config: ScheduleConfig, epochs: int) -> None:
    """Raise ConfigError when `epochs` would go past the stated horizon."""
    if config.schedule != "constant" and epochs > (config.horizon_epochs or 0.0):
        raise ConfigError(
            f"{epochs} epochs go past the {config.schedule} schedule's horizon of {config.horizon_epochs}",
            "A stated horizon is never stretched: start a new run with a longer one, or use a constant schedule.",
        )
