"""What is planned for: a model, its batches, the devices and the link between them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from torso.adapters.config import AdapterConfig
from torso.errors import ConfigError
from torso.model.config import Cuts, GPT2Config
from torso.parallel.strategy_config import shard_size
from torso.planner.hardware import Device, Link

Strategy = Literal["single", "ddp", "fsdp", "hsdp", "split"]
STRATEGIES: tuple[Strategy, ...] = ("single", "ddp", "fsdp", "hsdp", "split")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One training step to be planned; raises ConfigError for sizes that make none."""

    shape: GPT2Config
    """The model, with its dropouts."""
    adapter: AdapterConfig | None
    """None: all parameters are trained."""
    cuts: Cuts
    """Where a split cuts the model."""
    global_batch_size: int
    """Sequences in a step."""
    micro_batch_size: int
    """Sequences in one forward and backward (B)."""
    tokens: int
    """Tokens of a sequence with padding (T), the mean."""
    longest: int | None = None
    """The most that a sequence has, which decides the peak of memory. Default: `tokens`."""
    target_share: float = 1.0
    """Share of all positions that carry loss."""
    dtype: str = "fp32"
    """What is computed in; adapters, optimizer and logits are always fp32."""
    window: int = 4
    """Micro-batches that a rank with an adapter has in flight."""
    shard_size: int | None = None
    """Ranks that share one copy under HSDP. Default: as `torso train` has it."""
    devices: int = 1
    """How many there are, all alike."""
    device: Device
    """What they are."""
    link: Link
    """What joins them."""
    threads_alone: int = 1
    """Intra-op threads of a single process, on a CPU."""
    threads_each: int = 1
    """The same of each of several."""
    memory_limit: float = math.inf
    """Bytes that a device offers."""

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "tokens", "devices", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", "Give 1 or more.")
        if self.global_batch_size % self.micro_batch_size:
            text = f"global_batch_size {self.global_batch_size} is no multiple of micro_batch_size"
            raise ConfigError(f"{text} {self.micro_batch_size}", "Choose sizes where it is.")
        if max(self.tokens, self.longest or 0) > self.shape.n_positions:
            text = f"tokens is {max(self.tokens, self.longest or 0)}, the model has {self.shape.n_positions} positions"
            raise ConfigError(text, f"Give at most {self.shape.n_positions}.")
        if not 0.0 < self.target_share <= 1.0:
            raise ConfigError(f"target_share is {self.target_share}", "Give a number above 0, at most 1.")
        if self.dtype not in BYTES:
            raise ConfigError(f"dtype is {self.dtype!r}", f"Choose among {', '.join(BYTES)}.")

    @property
    def value_bytes(self) -> int:
        """Of one activation, or of one frozen weight."""
        return BYTES[self.dtype]

    @property
    def positions(self) -> int:
        """Of one micro-batch: B × T."""
        return self.micro_batch_size * self.tokens

    @property
    def target_rows(self) -> int:
        """Positions of a micro-batch whose loss is computed; the first of a sequence is never predicted."""
        rows = round(self.positions * self.target_share)
        return max(1, min(rows, self.micro_batch_size * (self.tokens - 1)))

    @property
    def micro_batches(self) -> int:
        """In a step."""
        return self.global_batch_size // self.micro_batch_size

    @property
    def at_its_longest(self) -> Setting:
        """The same with all sequences as long as the longest."""
        return dataclasses.replace(self, tokens=self.longest or self.tokens)

    def share(self, ranks: int) -> int:
        """Micro-batches of the busiest of so many ranks."""
        return math.ceil(self.micro_batches / ranks)

    def threads(self, strategy: Strategy) -> int:
        """Of each of its processes."""
        return self.threads_alone if strategy == "single" else self.threads_each

    @property
    def shards(self) -> int:
        """Ranks among which HSDP shards; their groups are replicas of each other."""
        return shard_size(self.shard_size, self.devices)

    @property
    def workers(self) -> int:
        """Body workers of a split, as `torso compare` counts them: half the devices."""
        return max(1, self.devices // 2)

    @property
    def clients(self) -> int:
        """Client ranks of a split: the other half."""
        return self.devices - self.workers


def refusal(setting: Setting, strategy: Strategy) -> str:
    """Why the strategy cannot do this; empty when it can."""
    if strategy == "split" and setting.adapter is None:
        return "a split trains adapters only: the server keeps the body's weights frozen"
    if strategy == "split" and setting.dtype == "fp16":
        return "a split has no fp16: losses are not scaled across parties"
    if strategy == "split" and setting.devices < 2:
        return "a split needs two devices, one for the client and one for the body"
    if strategy == "split" and not (setting.cuts.head_cut >= 1 and setting.cuts.body):
        return "the cuts leave no body, or no block before it"
    return ""
