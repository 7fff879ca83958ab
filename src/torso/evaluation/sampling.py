"""Tokens by chance, drawn by counter: the same for a prompt in whatever batch, on whatever party's machine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torso.randomness import uniform


class Sampler:
    """Temperature, then the `top_k` likeliest, then the nucleus of probability `top_p` (Holtzman et al. 2020)."""

    def __init__(self, temperature: float, top_k: int, top_p: float, seed: int) -> None:
        self._temperature, self._top_k, self._top_p, self._seed = temperature, top_k, top_p, seed

    def probabilities(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, V] → float64 probabilities [B, V], largest first, 0 for what is left out; and their tokens."""
        ordered, tokens = torch.sort(logits.double() / self._temperature, dim=1, descending=True, stable=True)
        if 0 < self._top_k < ordered.shape[1]:
            ordered[:, self._top_k :] = float("-inf")
        weights = ordered.softmax(dim=1)
        before = weights.cumsum(dim=1) - weights
        weights = weights.masked_fill(before >= self._top_p, 0.0)
        return weights / weights.sum(dim=1, keepdim=True), tokens

    def choose(self, logits: Tensor, numbers: Sequence[int], place: int) -> list[int]:
        """A token for each row of logits [B, V]; `numbers` are the prompts', `place` counts their tokens so far."""
        weights, tokens = self.probabilities(logits.cpu())
        draws = torch.stack([uniform((1,), "sampling", self._seed, number, place) for number in numbers])
        columns = torch.searchsorted(weights.cumsum(dim=1), draws, right=True)
        # the sum may end a rounding short of 1
        last = (weights > 0.0).sum(dim=1, keepdim=True) - 1
        return [int(token) for token in tokens.gather(1, torch.minimum(columns, last))[:, 0]]
