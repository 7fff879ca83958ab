"""Canonical micro-batches: what is computed together in step s, chosen by data, seed and batch sizes alone.

An epoch is a shuffle of all examples, cut into pools of 64 global batches. A pool is sorted by length, cut
into micro-batches, and its micro-batches are shuffled; consecutive ones make steps. So a micro-batch's
sequences are nearly of one length, which wastes little padding, while a step still mixes short and long
ones. Every example comes exactly once an epoch; only an epoch's last step can be short.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torso.data.encoding import AnyExample
from torso.errors import ConfigError, DataError
from torso.randomness import permutation

POOL_STEPS = 64


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Sequences of one forward and backward, padded at the right to the longest of them with the end token.

    index: its number within the step (or within an evaluation), from 0.
    token_ids: [B, T] int64.
    lengths: [B] int64, tokens that are not padding.
    target_mask: [B, T] bool, True at tokens to be predicted (each from the position before it).
    """

    index: int
    token_ids: Tensor
    lengths: Tensor
    target_mask: Tensor

    @property
    def num_targets(self) -> int:
        """Tokens that carry loss."""
        return int(self.target_mask.sum())

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths.sum())

    @property
    def num_padded_tokens(self) -> int:
        """Tokens with padding: B × T."""
        return self.token_ids.numel()


@dataclass(frozen=True)
class Step:
    """One optimizer update: its number from 1, its epoch from 1, and its micro-batches in order."""

    step: int
    epoch: int
    micro_batches: tuple[MicroBatch, ...]


class BatchPlan:
    """The steps of a training run; `step(s)` is a pure function of s = 1, 2, …, without end.

    examples: the training split, in order (not empty).
    seed: of the shuffles.
    global_batch_size: sequences in a step; a multiple of micro_batch_size.
    micro_batch_size: sequences in a micro-batch.
    """

    def __init__(
        self, examples: Sequence[AnyExample], seed: int, global_batch_size: int, micro_batch_size: int
    ) -> None:
        if not examples:
            raise DataError("there is no example to train on")
        if micro_batch_size < 1 or global_batch_size < 1 or global_batch_size % micro_batch_size:
            raise ConfigError(
                f"global batch {global_batch_size} is not a multiple of micro-batch {micro_batch_size}",
                "Choose a global batch size that is a multiple of the micro-batch size, both at least 1.",
            )
        self._examples = examples
        self._seed = seed
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._order: tuple[int, list[tuple[int, ...]]] = (0, [])

    @property
    def steps_per_epoch(self) -> int:
        """Number of updates that an epoch takes."""
        return -(-len(self._examples) // self._global_batch_size)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that the steps follow from."""
        sizes = (self._seed, self._global_batch_size, self._micro_batch_size, POOL_STEPS)
        digest = hashlib.sha256(repr(sizes).encode())
        for example in self._examples:
            digest.update(example.identity.encode())
        return digest.hexdigest()

    def step(self, number: int) -> Step:
        """The micro-batches of step number 1, 2, …"""
        if number < 1:
            raise ValueError(f"steps are counted from 1, got {number}")
        epoch, position = divmod(number - 1, self.steps_per_epoch)
        micro_batches_per_step = self._global_batch_size // self._micro_batch_size
        first = position * micro_batches_per_step
        chosen = self._epoch_order(epoch + 1)[first : first + micro_batches_per_step]
        return Step(number, epoch + 1, tuple(self._collate(index, rows) for index, rows in enumerate(chosen)))

    def padding_waste(self, epoch: int = 1) -> float:
        """The share of an epoch's token positions that is padding."""
        order = self._epoch_order(epoch)
        padded = sum(len(numbers) * max(len(self._examples[n]) for n in numbers) for numbers in order)
        return 1.0 - sum(len(example) for example in self._examples) / padded

    def _collate(self, index: int, numbers: Sequence[int]) -> MicroBatch:
        return collate(index, [self._examples[number] for number in numbers])

    def _epoch_order(self, epoch: int) -> list[tuple[int, ...]]:
        """The epoch's micro-batches as example numbers; only the last of them can be short."""
        if self._order[0] != epoch:
            self._order = (epoch, self._shuffle(epoch))
        return self._order[1]

    def _shuffle(self, epoch: int) -> list[tuple[int, ...]]:
        order = permutation(len(self._examples), "examples", self._seed, epoch)
        pool_size = POOL_STEPS * self._global_batch_size
        micro_batches: list[tuple[int, ...]] = []
        for number, start in enumerate(range(0, len(order), pool_size)):
            pool = sorted(order[start : start + pool_size], key=lambda n: len(self._examples[n]))
            cut = [tuple(chunk) for chunk in _chunks(pool, self._micro_batch_size)]
            # A short micro-batch stays last, so that only the epoch's last step is short.
            num_whole = len(pool) // self._micro_batch_size
            shuffled = permutation(num_whole, "micro-batches", self._seed, epoch, number)
            micro_batches += [cut[n] for n in shuffled] + cut[num_whole:]
        return micro_batches


def evaluation_batches(examples: Sequence[AnyExample], batch_size: int) -> list[MicroBatch]:
    """All examples once, sorted by length, for a loss that does not depend on their order."""
    if not examples:
        raise DataError("there is no example to evaluate on")
    if batch_size < 1:
        raise ConfigError(f"the evaluation's batch size is {batch_size}", "Choose at least 1.")
    order = sorted(range(len(examples)), key=lambda n: len(examples[n]))
    chunks = _chunks(order, batch_size)
    return [collate(i, [examples[n] for n in numbers]) for i, numbers in enumerate(chunks)]


def collate(index: int, examples: Sequence[AnyExample]) -> MicroBatch:
    """One micro-batch of these examples, in this order, filled up with the last token of the first: the end token,
    which each ends with, or, in a block, any other, which nobody looks at."""
    lengths = [len(example) for example in examples]
    rows = [torch.tensor(example.ids()) for example in examples]
    token_ids = torch.full((len(examples), max(lengths)), int(rows[0][-1]), dtype=torch.int64)
    target_mask = torch.zeros(token_ids.shape, dtype=torch.bool)
    for row, (example, ids, length) in enumerate(zip(examples, rows, lengths, strict=True)):
        token_ids[row, :length] = ids
        target_mask[row, example.num_prompt_tokens : length] = True
    return MicroBatch(index, token_ids, torch.tensor(lengths), target_mask)


def _chunks(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
