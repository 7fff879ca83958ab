"""Keys and values of the tokens so far, for decoding.

The first chunk is the prompt, further ones follow it; a row may fill only its first `lengths[b]` columns of a chunk
(prompts of different lengths, padded on the right), and attention leaves the others out. Rows that continue one prompt,
as beams do, share its keys and values: what each step moves is what was decoded since, not the prompts.
P prompts, K rows a prompt, B = P K sequences, H heads, S prompt columns, n columns since, t new ones, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

_CAPACITY = 16
"""Columns that room is made for at first."""


class KeyValueCache:
    """The cache of one stage's blocks for one batch."""

    def __init__(self, layers: Iterable[int]) -> None:
        self._layers = {layer: _Layer() for layer in layers}
        self._prompt_valid: Tensor | None = None  # [P, S]
        self._recent_valid: Tensor | None = None  # [B, n]
        self._counts: Tensor | None = None  # [B, 1], tokens of each row so far
        self._rows_per_prompt = 1
        self._masks: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def columns(self) -> int:
        """S + n, columns so far, those of the chunk under way included."""
        return sum(valid.shape[1] for valid in (self._prompt_valid, self._recent_valid) if valid is not None)

    @property
    def batch(self) -> int | None:
        """B, or None before the first chunk."""
        return None if self._counts is None else self._counts.shape[0]

    def extend(self, lengths: Sequence[int], columns: int, device: torch.device) -> Tensor:
        """Make room for a chunk of `columns`, row b filling `lengths[b]` of them; returns its positions [B, t]."""
        counts = torch.tensor(list(lengths), device=device)[:, None]
        offsets = torch.arange(columns, device=device)[None, :]
        new = offsets < counts
        before = torch.zeros_like(counts) if self._counts is None else self._counts
        self._counts = before + counts
        if self._prompt_valid is None:
            self._prompt_valid, self._masks = new, (_causal(new, columns), None)
        else:
            known = new[:, :0] if self._recent_valid is None else self._recent_valid
            self._recent_valid = torch.cat([known, new], dim=1)
            self._masks = (_unless_all(self._prompt_valid), _unless_all(_causal(self._recent_valid, columns)))
        return before + offsets

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Add a chunk's keys and values [B, H, t, D]; returns what its queries find in all of them, [B, H, t, D]."""
        held = self._layers[layer]
        if held.prompt is None:
            held.prompt = (key, value)
            return functional.scaled_dot_product_attention(query, key, value, attn_mask=self._masks[0])
        held.append(key, value)
        return held.mix(query, self._rows_per_prompt, *self._masks)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken several times."""
        if self._counts is None or self._prompt_valid is None:
            return
        prompts, rows_per_prompt = _owners([row // self._rows_per_prompt for row in rows])
        if prompts != list(range(self._prompt_valid.shape[0])):
            index = torch.tensor(prompts, device=self._counts.device)
            self._prompt_valid = self._prompt_valid[index]
            for held in self._layers.values():
                held.select_prompts(index)
        self._rows_per_prompt = rows_per_prompt
        if list(rows) != list(range(self._counts.shape[0])):
            index = torch.tensor(list(rows), device=self._counts.device)
            self._counts = self._counts[index]
            self._recent_valid = None if self._recent_valid is None else self._recent_valid[index]
            for held in self._layers.values():
                held.select_rows(index)


class _Layer:
    """One block's keys and values. The newer columns come first in memory's order, so that a row is moved at once."""

    def __init__(self) -> None:
        self.prompt: tuple[Tensor, Tensor] | None = None  # [P, H, S, D] each
        self._recent: Tensor | None = None  # [2, capacity, B, H, D], keys and values
        self._num = 0

    def append(self, key: Tensor, value: Tensor) -> None:
        """[B, H, t, D] each."""
        batch, heads, new, width = key.shape
        needed = self._num + new
        if self._recent is None or self._recent.shape[1] < needed:
            grown = key.new_empty(2, max(_CAPACITY, 2 * needed), batch, heads, width)
            if self._recent is not None:
                grown[:, : self._num] = self._recent[:, : self._num]
            self._recent = grown
        self._recent[0, self._num : needed] = key.permute(2, 0, 1, 3)
        self._recent[1, self._num : needed] = value.permute(2, 0, 1, 3)
        self._num = needed

    def mix(self, query: Tensor, beams: int, prompt_mask: Tensor | None, recent_mask: Tensor | None) -> Tensor:
        """Attention over the prompt, once for all rows that share it, and over the rows' own columns since."""
        assert self.prompt is not None
        assert self._recent is not None
        batch, heads, new, width = query.shape
        keys, values = self.prompt
        prompts, columns = keys.shape[0], keys.shape[2]
        query = query / math.sqrt(width)
        # [P, H, K t, D]: the rows of one prompt are queries to one set of keys
        shared = query.view(prompts, beams, heads, new, width).transpose(1, 2).reshape(prompts, heads, -1, width)
        scores = shared @ keys.transpose(2, 3)
        if prompt_mask is not None:
            scores = scores.masked_fill(~prompt_mask[:, None, None, :], float("-inf"))
        scores = scores.view(prompts, heads, beams, new, columns).transpose(1, 2).reshape(batch, heads, new, columns)
        # [B H, n, D], without moving anything
        own_keys, own_values = (part[: self._num].flatten(1, 2).transpose(0, 1) for part in self._recent)
        own = (query.reshape(batch * heads, new, width) @ own_keys.transpose(1, 2)).view(batch, heads, new, -1)
        if recent_mask is not None:
            own = own.masked_fill(~recent_mask, float("-inf"))
        weights = torch.cat([scores, own], dim=3).softmax(dim=3, dtype=torch.float32).to(query.dtype)
        to_prompt = weights[..., :columns].view(prompts, beams, heads, new, columns).transpose(1, 2)
        mixed = to_prompt.reshape(prompts, heads, -1, columns) @ values
        mixed = mixed.view(prompts, heads, beams, new, width).transpose(1, 2).reshape(query.shape)
        since: Tensor = weights[..., columns:].reshape(batch * heads, new, -1) @ own_values
        return mixed + since.view(query.shape)

    def select_prompts(self, index: Tensor) -> None:
        """Keep these prompts."""
        if self.prompt is not None:
            self.prompt = (self.prompt[0][index], self.prompt[1][index])

    def select_rows(self, index: Tensor) -> None:
        """Keep these rows of the newer columns."""
        if self._recent is None:
            return
        old, shape = self._recent, self._recent.shape
        if len(index) == shape[2]:
            moved = (index != torch.arange(len(index), device=index.device)).nonzero()[:, 0]
            if 2 * len(moved) <= len(index):
                known = old[:, : self._num]
                known.index_copy_(2, moved, known.index_select(2, index[moved]))
                return
        self._recent = old.new_empty(2, shape[1], len(index), *shape[3:])
        for part, kept in zip(old, self._recent, strict=True):
            torch.index_select(part[: self._num], 1, index, out=kept[: self._num])


def _causal(valid: Tensor, new: int) -> Tensor:
    """[B, 1, t, columns] for the last `new` of the columns as queries; padding attends itself, lest it be nothing."""
    columns = torch.arange(valid.shape[1], device=valid.device)[None, :]
    queries = columns[:, valid.shape[1] - new :].transpose(0, 1)
    return ((valid[:, None, :] & (columns <= queries)) | (columns == queries))[:, None]


def _unless_all(mask: Tensor) -> Tensor | None:
    """None when nothing is masked, which is the rule from the second chunk on."""
    return None if bool(mask.all()) else mask


def _owners(owners: Sequence[int]) -> tuple[list[int], int]:
    """The prompts to keep for rows with these prompts, and how many rows in a row share each."""
    groups = [(owner, sum(1 for _ in rows)) for owner, rows in groupby(owners)]
    sizes = {size for _, size in groups}
    if len(sizes) == 1:
        return [owner for owner, _ in groups], sizes.pop()
    return list(owners), 1
