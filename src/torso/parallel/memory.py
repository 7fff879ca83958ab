"""How much memory this process has needed."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import torch


def peak_memory(device: torch.device | None = None) -> int:
    """The most since `forget_peak` or the start, in bytes: of the device where CUDA is used, else resident."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.max_memory_allocated(device))
    return peak_resident()


def forget_peak() -> None:
    """From here on the peak is that of what follows; where the system does not offer it (only Linux does), of all."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_resident() -> int:
    """Most resident memory of this very program.

    From the kernel's status file: what getrusage says starts, on Linux, at what the starting process held then.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
