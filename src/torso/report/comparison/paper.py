"""Table 1 of "A Comparative Analysis of Distributed Training Strategies for GPT-2", which the comparison follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """One column: averages and totals of one strategy."""

    loss: float
    """Total loss / total tokens."""
    grad_norm: float
    seconds: float
    """Total training time."""
    memory_megabytes: float
    throughput: float
    """Tokens / time, in the paper's own unit, which it does not state."""


TABLE_1 = {
    "ddp": Published(loss=9.907, grad_norm=1.404, seconds=1324.0, memory_megabytes=4536.0, throughput=2.266),
    "fsdp": Published(loss=10.05, grad_norm=0.919, seconds=1656.0, memory_megabytes=3816.0, throughput=1.992),
    "single": Published(loss=8.979, grad_norm=4.664, seconds=2102.0, memory_megabytes=4063.0, throughput=2.854),
}
SET_UP = "GPT-2 of 124 M parameters, All the News, two T4 GPUs"


def ratio_to_single(strategy: str, quantity: str) -> float | None:
    """What the paper's strategy took, as a multiple of its single device; None where it has no such column."""
    if strategy not in TABLE_1:
        return None
    return float(getattr(TABLE_1[strategy], quantity) / getattr(TABLE_1["single"], quantity))
