"""From a strategy's name to the strategy, applied to a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from torso.errors import ConfigError
from torso.parallel.ddp import DistributedData
from torso.parallel.fsdp import FullySharded
from torso.parallel.group import Group
from torso.parallel.reductions import check_reductions
from torso.parallel.strategy import Single, Strategy
from torso.parallel.units import compile_units, compute_in, recompute_activations

DATA_PARALLEL = ("ddp", "fsdp", "hsdp")


@dataclass(frozen=True, kw_only=True)
class StrategyConfig:
    """How a module is spread over the ranks of a group, and how its units run."""

    name: Literal["single", "ddp", "fsdp", "hsdp"] = "single"
    """Which strategy."""
    deterministic: bool = False
    """Add gradients in the order of micro-batches, so that all strategies give the same bits."""
    shard_size: int | None = None
    """Of hsdp: ranks that share one copy. Default: half of them, at least 2."""
    recompute: bool = False
    """Keep units' inputs only, and compute activations again in the backward pass."""
    compile: bool = False
    """Units run under torch.compile."""


def apply(
    config: StrategyConfig,
    module: nn.Module,
    units: Sequence[nn.Module],
    group: Group,
    device: torch.device,
    compute_dtype: torch.dtype | None = None,
) -> Strategy:
    """The strategy over a module whose call gives a scalar loss.

    `units` are its parts that run one after the other (blocks). `compute_dtype` is what trainable parameters are cast
    to for computing, None: nothing. Raises ConfigError for a backend that adds wrongly.
    """
    if config.name in DATA_PARALLEL:
        check_reductions(device)
    if config.compile:
        compile_units(units)
    if compute_dtype is not None and config.name in ("single", "ddp"):
        compute_in(compute_dtype, module, units)
    if config.recompute:
        recompute_activations(units)
    if config.name == "single":
        return Single(module)
    if config.name == "ddp":
        return DistributedData(module, deterministic=config.deterministic)
    return FullySharded(
        module,
        units,
        group,
        device_type=device.type,
        deterministic=config.deterministic,
        shard_size=shard_size(config.shard_size, group.world_size) if config.name == "hsdp" else group.world_size,
        compute_dtype=compute_dtype,
    )


def shard_size(asked: int | None, world_size: int) -> int:
    """Ranks that share one copy under hsdp; raises ConfigError when the ranks cannot be shared out so."""
    if asked is None:
        fitting = [size for size in range(2, max(2, world_size // 2) + 1) if world_size % size == 0]
        return fitting[-1] if fitting else world_size
    if asked < 2 or world_size % asked:
        raise ConfigError(f"shard_size is {asked} with {world_size} ranks", "Give 2 or more, a divisor of the ranks.")
    return asked
