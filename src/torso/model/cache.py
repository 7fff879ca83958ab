"""Keys and values of the tokens so far, for decoding.

Chunks of t columns are appended; a row may fill only its first `lengths[b]` columns of a chunk (prompts of different
lengths, padded on the right), and attention leaves the others out. B sequences, H heads, S columns, D head width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class KeyValueCache:
    """The cache of one stage's blocks for one batch."""

    def __init__(self, layers: Iterable[int]) -> None:
        self._keys: dict[int, Tensor | None] = dict.fromkeys(layers)
        self._values: dict[int, Tensor | None] = dict(self._keys)
        self._valid: Tensor | None = None
        self._mask: Tensor | None = None

    @property
    def columns(self) -> int:
        """S, columns so far, those of the chunk under way included."""
        return 0 if self._valid is None else self._valid.shape[1]

    @property
    def batch(self) -> int | None:
        """B, or None before the first chunk."""
        return None if self._valid is None else self._valid.shape[0]

    def extend(self, lengths: Sequence[int], columns: int, device: torch.device) -> Tensor:
        """Make room for a chunk of `columns`, row b filling `lengths[b]` of them; returns its positions [B, t]."""
        counts = torch.tensor(list(lengths), device=device)
        offsets = torch.arange(columns, device=device)
        new = offsets[None, :] < counts[:, None]
        before = new.new_zeros((len(counts), 0)) if self._valid is None else self._valid
        self._valid = torch.cat([before, new], dim=1)
        start = before.shape[1]
        causal = torch.arange(self.columns, device=device)[None, :] <= (start + offsets)[:, None]
        # A padding query attends itself too, lest its softmax be over nothing.
        own = torch.arange(self.columns, device=device)[None, :] == (start + offsets)[:, None]
        self._mask = ((self._valid[:, None, :] & causal[None]) | own[None])[:, None]
        return before.sum(dim=1, keepdim=True) + offsets[None, :]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add a chunk's keys and values [B, H, t, D]; returns all of them and the mask [B, 1, t, S]."""
        assert self._mask is not None, "extend comes first"
        old_keys, old_values = self._keys[layer], self._values[layer]
        if old_keys is not None and old_values is not None:
            keys, values = torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)
        self._keys[layer], self._values[layer] = keys, values
        return keys, values, self._mask

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken several times."""
        index = torch.tensor(list(rows))
        if self._valid is None:
            return
        index = index.to(self._valid.device)
        self._valid = self._valid[index]
        for tensors in (self._keys, self._values):
            tensors.update({layer: None if t is None else t[index] for layer, t in tensors.items()})
