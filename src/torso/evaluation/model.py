"""A model for evaluation: head and tail here, the middle at home or on a server. B sequences, t columns, C width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from torso.model.cache import KeyValueCache
from torso.model.config import Cuts
from torso.model.stages import Head, Tail


class GenerationMiddle(Protocol):
    """The middle's cache for one batch."""

    def forward(self, x: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        """[B, t, C] → [B, t, C]; `rows` first picks rows of the cached batch."""

    def close(self) -> None:
        """Free it."""


class InferenceMiddle(Protocol):
    """The middle blocks."""

    def infer(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """[B, T, C] → [B, T, C], nothing kept."""

    def open(self, batch: int) -> GenerationMiddle:
        """A cache for a batch."""


class LocalMiddle:
    """The body at home."""

    def __init__(self, body: nn.Module, cuts: Cuts) -> None:
        self._body, self._cuts = body, cuts

    def infer(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """See InferenceMiddle."""
        output: Tensor = self._body(x)
        return output

    def open(self, batch: int) -> GenerationMiddle:
        """See InferenceMiddle."""
        return _LocalGeneration(self._body, self._cuts)


class _LocalGeneration:
    def __init__(self, body: nn.Module, cuts: Cuts) -> None:
        self._body, self._cache = body, KeyValueCache(cuts.body)

    def forward(self, x: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        if rows is not None:
            self._cache.select(rows)
        output: Tensor = self._body(x, cache=self._cache, lengths=lengths)
        return output

    def close(self) -> None:
        self._cache = KeyValueCache(())


class CachedModel:
    """Head, middle and tail as one language model."""

    def __init__(self, head: Head, middle: InferenceMiddle, tail: Tail, cuts: Cuts, device: torch.device) -> None:
        self.head, self.middle, self.tail, self.cuts, self.device = head, middle, tail, cuts, device

    def hidden(self, token_ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Token ids [B, T] → hidden states [B, T, C] after the final norm."""
        x = self.head(token_ids.to(self.device))
        output: Tensor = self.tail(self.middle.infer(x, lengths).to(self.device))
        return output

    def start(self, batch: int) -> Decoding:
        """Begin to decode a batch."""
        return Decoding(self, batch)


class Decoding:
    """The caches of one batch on all three stages."""

    def __init__(self, model: CachedModel, batch: int) -> None:
        self._model, self._middle = model, model.middle.open(batch)
        self._head_cache, self._tail_cache = KeyValueCache(model.cuts.head), KeyValueCache(model.cuts.tail)

    def forward(self, token_ids: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        """Token ids [B, t], row b's first `lengths[b]` real → logits [B, V] after each row's last real token.

        `rows` first picks rows of the batch so far (finished ones are left out, beams reordered).
        """
        model = self._model
        if rows is not None:
            self._head_cache.select(rows)
            self._tail_cache.select(rows)
        x = model.head(token_ids.to(model.device), cache=self._head_cache, lengths=lengths)
        x = self._middle.forward(x, lengths, rows).to(model.device)
        hidden = model.tail(x, cache=self._tail_cache, lengths=lengths)
        last = torch.tensor(list(lengths), device=model.device) - 1
        return model.tail.logits(hidden[torch.arange(hidden.shape[0], device=model.device), last])

    def close(self) -> None:
        """Free the caches."""
        self._middle.close()


def padded(prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Token ids [B, T], padded on the right."""
    longest = max(map(len, prompts))
    return torch.tensor([[*prompt, *[pad_id] * (longest - len(prompt))] for prompt in prompts])
