"""Loss scaling for fp16: small gradients would vanish, so the loss is multiplied first and the gradients divided last.

The factor is a power of two: multiplying and dividing by it changes no bits of numbers in range.
"""

from __future__ import annotations

import torch
from torch import Tensor

INITIAL, LARGEST = 2.0**10, 2.0**24
"""Losses are sums over tokens, not means: far less is needed to begin with than torch's GradScaler takes."""
GROW_AFTER = 500
"""Updates in a row without overflow."""


class LossScaler:
    """Halves the factor after an overflow, doubles it after `GROW_AFTER` good updates (Micikevicius et al. 2018)."""

    def __init__(self) -> None:
        self.scale, self._good = INITIAL, 0

    def update(self, overflowed: bool) -> None:
        """After each step, on every rank alike."""
        if overflowed:
            self.scale, self._good = max(1.0, self.scale / 2.0), 0
            return
        self._good += 1
        if self._good == GROW_AFTER:
            self.scale, self._good = min(LARGEST, self.scale * 2.0), 0

    def state(self) -> Tensor:
        """[2] float64."""
        return torch.tensor([self.scale, float(self._good)], dtype=torch.float64)

    def load(self, state: Tensor | None) -> None:
        """Take over a state; None is the beginning."""
        self.scale, self._good = (INITIAL, 0) if state is None else (float(state[0]), int(state[1]))
