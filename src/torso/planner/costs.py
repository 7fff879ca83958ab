"""Seconds of the pieces that a step is made of: from published figures, or from measurements."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from torso.errors import ConfigError
from torso.planner.counts import block_backward_flops, block_forward_flops, loss_flops
from torso.planner.hardware import MEMORY_UTILISATION, UTILISATION, Link
from torso.planner.setting import Setting

CODEC_BYTES_PER_SECOND = 2e9
"""Writing or reading a tensor as safetensors on one core; assumed where nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds of an operation on so many bytes."""

    latency_s: float
    seconds_per_byte: float

    def seconds(self, num_bytes: float) -> float:
        """Latency, and time by size."""
        return self.latency_s + num_bytes * self.seconds_per_byte


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of one setting, on one device, while its other devices work too."""

    block_forward: float
    """One micro-batch through one block."""
    block_backward: float
    loss: float
    """Final norm, LM head and loss of one micro-batch, forward and backward."""
    update: Line
    """The optimizer, by bytes of trained parameters (fp32)."""
    combine: Line
    """Adding one micro-batch's kept gradients (adapters), by their bytes."""
    all_reduce: Line
    """A collective among all devices, by bytes that a rank sends."""
    all_gather: Line
    reduce_scatter: Line
    wire: Line
    """One message of a split, there or back, by its bytes."""
    wire_work: Line
    """What of it keeps a party busy: writing, or reading."""
    unit: Line = field(default_factory=lambda: Line(latency_s=0.0, seconds_per_byte=0.0))
    """What FSDP does around a unit in a micro-batch's two passes, the collectives aside, by the unit's bytes."""
    step: float = 0.0
    """What every step takes besides: votes, the log."""
    overlaps: bool = False
    """Whether communication can run beside computation."""


def over(costs: Costs, link: Link) -> Costs:
    """The same pieces where a slower link joins the devices than the one that was measured."""
    if math.isnan(link.bytes_per_second):
        return costs
    network = Line(latency_s=link.latency_s, seconds_per_byte=1.0 / link.bytes_per_second)
    collectives: dict[str, Any] = {
        name: _slower(getattr(costs, name), network) for name in ("all_reduce", "all_gather", "reduce_scatter")
    }
    # a message passes the link once; what both sides do with it stays
    wire = Line(
        latency_s=costs.wire.latency_s + network.latency_s,
        seconds_per_byte=costs.wire.seconds_per_byte + network.seconds_per_byte,
    )
    return dataclasses.replace(costs, **collectives, wire=wire)


def _slower(measured: Line, network: Line) -> Line:
    return Line(
        latency_s=max(measured.latency_s, network.latency_s),
        seconds_per_byte=max(measured.seconds_per_byte, network.seconds_per_byte),
    )


def nominal(setting: Setting) -> Costs:
    """From the makers' figures and the stated utilisation.

    Raises ConfigError where there are none, or the dtype is unknown.
    """
    device, link = setting.device, setting.link
    if setting.dtype not in device.peak_flops:
        known = ", ".join(device.peak_flops)
        text = f"no nominal FLOP/s are known of {device.name}" + (f" in {setting.dtype}" if known else "")
        raise ConfigError(text, f"Choose {known}." if known else "Measure: --calibrate, or --calibration FILE.")
    if math.isnan(link.bytes_per_second):
        raise ConfigError(f"no nominal rate is known of link {link.name}", "Give one, e.g. --link pcie4 or 10Gbit/s.")
    rate = device.peak_flops[setting.dtype] * UTILISATION
    memory = Line(latency_s=0.0, seconds_per_byte=1.0 / (device.memory_bandwidth * MEMORY_UTILISATION))
    network = Line(latency_s=link.latency_s, seconds_per_byte=1.0 / link.bytes_per_second)
    codec = Line(latency_s=1e-3, seconds_per_byte=1.0 / CODEC_BYTES_PER_SECOND)
    return Costs(
        block_forward=block_forward_flops(setting) / rate,
        block_backward=block_backward_flops(setting) / rate,
        loss=loss_flops(setting) / rate,
        # AdamW reads weight, gradient and two moments, and writes weight and moments: seven times the weights' bytes
        update=Line(latency_s=0.0, seconds_per_byte=7.0 * memory.seconds_per_byte),
        combine=Line(latency_s=0.0, seconds_per_byte=3.0 * memory.seconds_per_byte),
        all_reduce=network,
        all_gather=network,
        reduce_scatter=network,
        wire=Line(
            latency_s=network.latency_s + 2.0 * codec.latency_s,
            seconds_per_byte=network.seconds_per_byte + 2.0 * codec.seconds_per_byte,
        ),
        wire_work=codec,
        overlaps=True,
    )
