"""How much memory this process has needed."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

import torch

LARGE = 4 << 20
"""Bytes of a tensor that is worth a call to the system."""
_M_MMAP_THRESHOLD = -3


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


def return_large_tensors() -> None:
    """Let what is freed in large pieces go back to the system at once.

    glibc raises the size from which it does so to 32 MB as such pieces are freed (mallopt(3), M_MMAP_THRESHOLD), and
    keeps smaller ones: what FSDP gives back after each use would stay resident. Elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)


def peak_resident() -> int:
    """Most resident memory of this very program.

    From the kernel's status file: what getrusage says starts, on Linux, at what the starting process held then.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
