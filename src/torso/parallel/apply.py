"""From a strategy's name to the strategy, applied to a module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from torso.parallel.ddp import DistributedData
from torso.parallel.fsdp import FullySharded
from torso.parallel.group import Group
from torso.parallel.reductions import check_reductions
from torso.parallel.strategy import Single, Strategy
from torso.parallel.strategy_config import DATA_PARALLEL, StrategyConfig
from torso.parallel.units import compile_units, compute_in, recompute_activations


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
        shard_size=config.ranks_in_a_copy(group.world_size),
        compute_dtype=compute_dtype,
    )
