"""Settings of a data-parallel strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torso.errors import ConfigError

DATA_PARALLEL = ("ddp", "fsdp", "hsdp")
"""Strategies whose ranks hold the same model, whole or in shares."""


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

    def ranks_in_a_copy(self, world_size: int) -> int:
        """Ranks over which parameters are shared out."""
        return {"fsdp": world_size, "hsdp": shard_size(self.shard_size, world_size)}.get(self.name, 1)

    def describe(self, world_size: int) -> str:
        """Whose order of addition decides the bits; empty where it is that of the micro-batches."""
        if self.name == "single" or self.deterministic or world_size == 1:
            return ""
        copies = f" in copies of {self.ranks_in_a_copy(world_size)}" if self.name == "hsdp" else ""
        return f"{self.name} on {world_size} ranks{copies}"


def check_ranks(strategy: str, world_size: int, asked: int | None) -> None:
    """Raise ConfigError when the strategy cannot run on so many ranks."""
    if strategy == "hsdp":
        shard_size(asked, world_size)
    elif asked is not None:
        raise ConfigError(f"shard_size is {asked} with strategy {strategy}", "It is for hsdp.")


def shard_size(asked: int | None, world_size: int) -> int:
    """Ranks that share one copy under hsdp; raises ConfigError when the ranks cannot be shared out so."""
    if asked is None:
        fitting = [size for size in range(2, max(2, world_size // 2) + 1) if world_size % size == 0]
        return fitting[-1] if fitting else world_size
    if asked < 2 or world_size % asked:
        raise ConfigError(f"shard_size is {asked} with {world_size} ranks", "Give 2 or more, a divisor of the ranks.")
    return asked
