"""Devices and links: what their makers publish, and what is assumed of it.

Nominal figures only: peak FLOP/s are dense (no sparsity), memory is the marketed size in decimal gigabytes. Nobody
reaches the peak, so a stated UTILISATION of it is assumed; `--calibrate` replaces all of this by measurements.

Sources, all NVIDIA's own: "NVIDIA T4 70W Low Profile PCIe GPU Accelerator" (data sheet), "NVIDIA V100 Tensor Core
GPU" (data sheet, SXM2), "NVIDIA A100 Tensor Core GPU" (data sheet, SXM), "NVIDIA L4 Tensor Core GPU" (data sheet; its
tensor figures are given with sparsity and halved here), "NVIDIA A10 Tensor Core GPU" (data sheet), "NVIDIA H100
Tensor Core GPU" (data sheet, SXM; halved likewise), "NVIDIA H200 Tensor Core GPU" (data sheet, SXM; halved likewise),
"NVIDIA Ada GPU Architecture" (whitepaper, RTX 4090).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torso.errors import ConfigError

UTILISATION = 0.35
"""Share of the peak that a training step is assumed to reach.

NanoGPT states 0.37 on one A100 in its notebook, llm.c about 0.6.
"""
MEMORY_UTILISATION = 0.7
"""Share of the memory's bandwidth that the optimizer is assumed to reach."""
CONTEXT_BYTES = 0.5e9
"""A CUDA context with its libraries; assumed, it differs by driver."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of device."""

    name: str
    peak_flops: dict[str, float]
    """By dtype, FLOP/s; empty: known by calibration only."""
    memory_bandwidth: float = math.nan
    """Bytes a second."""
    memory_bytes: float = math.inf

    @property
    def is_cpu(self) -> bool:
        """Whether Torso's processes share their memory with Python."""
        return self.name == "cpu"


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins two devices."""

    name: str
    bytes_per_second: float
    """One direction."""
    latency_s: float = 50e-6
    """Of one message."""


def _gpu(name: str, fp32: float, half: float, bandwidth: float, memory: float, bf16: bool = True) -> Device:
    flops = {"fp32": fp32 * 1e12, "fp16": half * 1e12} | ({"bf16": half * 1e12} if bf16 else {})
    return Device(name=name, peak_flops=flops, memory_bandwidth=bandwidth * 1e9, memory_bytes=memory * 1e9)


CPU = Device(name="cpu", peak_flops={})
DEVICES = {
    device.name: device
    for device in (
        CPU,
        _gpu("t4", 8.1, 65.0, 320, 16, bf16=False),
        _gpu("v100", 15.7, 125.0, 900, 32, bf16=False),
        _gpu("a10", 31.2, 125.0, 600, 24),
        _gpu("l4", 30.3, 121.0, 300, 24),
        _gpu("rtx4090", 82.6, 165.2, 1008, 24),
        _gpu("a100-40gb", 19.5, 312.0, 1555, 40),
        _gpu("a100-80gb", 19.5, 312.0, 2039, 80),
        _gpu("h100", 67.0, 989.5, 3350, 80),
        _gpu("h200", 67.0, 989.5, 4800, 141),
    )
}
LINKS = {
    link.name: link
    for link in (
        # measured by --calibrate only: processes of one machine
        Link(name="loopback", bytes_per_second=math.nan),
        # PCI Express 3.0 and 4.0, 16 lanes: 15.75 and 31.5 GB/s nominal
        Link(name="pcie3", bytes_per_second=15.75e9, latency_s=10e-6),
        Link(name="pcie4", bytes_per_second=31.5e9, latency_s=10e-6),
        # NVLink of V100, A100, H100: 300, 600, 900 GB/s for both directions together
        Link(name="nvlink2", bytes_per_second=150e9, latency_s=10e-6),
        Link(name="nvlink3", bytes_per_second=300e9, latency_s=10e-6),
        Link(name="nvlink4", bytes_per_second=450e9, latency_s=10e-6),
    )
}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT])(bit|b|B)(?:/s|ps)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def device_of(name: str) -> Device:
    """A device by its name; raises ConfigError."""
    if name.lower() not in DEVICES:
        raise ConfigError(f"no device is called {name!r}", f"Choose among {', '.join(DEVICES)}.")
    return DEVICES[name.lower()]


def link_of(text: str) -> Link:
    """A link by its name, or by its rate in one direction: 10Gbit/s, 3GB/s. Raises ConfigError."""
    if text.lower() in LINKS:
        return LINKS[text.lower()]
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * 1000.0 ** _POWERS[match[2].lower()] if match else 0.0
    if match is None or not rate:
        remedy = f"Write 10Gbit/s or 3GB/s, or one of {', '.join(LINKS)}."
        raise ConfigError(f"link is {text!r}", remedy)
    return Link(name=text.strip(), bytes_per_second=rate / 8.0 if match[3] in ("bit", "b") else rate)


def bytes_of(text: str) -> float:
    """16GB is 16 × 10⁹ bytes, 16GiB is 16 × 2³⁰. Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * (1024.0 if match[3] else 1000.0) ** _POWERS[match[2].lower()] if match else 0.0
    if not size:
        raise ConfigError(f"device_memory is {text!r}", "Write 16GB or 16GiB.")
    return size
