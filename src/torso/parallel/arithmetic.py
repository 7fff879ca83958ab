"""What the bits of a result depend on beside the mathematics: part of a run's identity."""

from __future__ import annotations

import platform
from typing import Literal

import torch

from torso.errors import ConfigError

Dtype = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SPLIT_DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")
"""What a split computes in: fp16 needs losses that are scaled, which parties do not do together."""


def describe(device: torch.device, dtype: str, attention: str) -> dict[str, str]:
    """The arithmetic of this process: equal descriptions give equal bits."""
    kind = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": kind,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()) if device.type == "cpu" else "-",
        "dtype": dtype,
        "attention": attention,
    }


UNSAID = {"addition": "in order", "compiled": "nothing"}
"""Fields that a description has only where they are something else."""


def differences(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Each field that differs, as `field: ours here, theirs there`; empty when the bits will agree."""
    fields = sorted(ours.keys() | theirs.keys())
    pairs = {field: [one.get(field, UNSAID.get(field, "unknown")) for one in (ours, theirs)] for field in fields}
    return [f"{field}: {here} here, {there} there" for field, (here, there) in pairs.items() if here != there]


def set_threads(threads: int) -> None:
    """Compute with this many intra-op threads from here on, whatever the environment says."""
    if threads < 1:
        raise ConfigError(f"threads is {threads}", "Give 1 or more.")
    torch.set_num_threads(threads)


def native_dtype(device: torch.device) -> Dtype:
    """The dtype that `auto` stands for: what the device does natively."""
    if device.type == "cuda":
        # fp16 must be asked for: a split cannot scale losses, and older GPUs compute in fp32 too
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    capabilities = torch.backends.cpu.get_cpu_capability()
    native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and capabilities.startswith("AVX512")
    return "bf16" if native and _has_bf16_units() else "fp32"


def _has_bf16_units() -> bool:
    try:
        flags = next(line for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("flags"))
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
