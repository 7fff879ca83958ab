"""Addition in one order: ((g0 + g1) + g2) + …, by the index of the micro-batch, whoever computed it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def add_in_order(total: Tensor | None, wave: Sequence[Tensor]) -> Tensor:
    """The wave's gradients, by rank, onto the sum of those before it; the first of all begins the sum."""
    if total is None:
        total, wave = wave[0].clone(), wave[1:]
    for gradient in wave:
        total += gradient
    return total
