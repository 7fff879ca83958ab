"""Losses, tokens, time, memory and traffic of a step, gathered over all ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torso.parallel.group import Group
from torso.parallel.memory import forget_peak, peak_memory
from torso.parallel.traffic import Traffic
from torso.records import EpochRecord, StepRecord, grad_norms
from torso.training.learner import Learner, MicroBatchResult
from torso.training.part import Update


@dataclass(frozen=True)
class StepTotals:
    """Sums over the micro-batches of a step."""

    loss_sum: float
    target_tokens: int
    real_tokens: int
    padded_tokens: int


@dataclass(frozen=True)
class _Used:
    """By rank."""

    sent: tuple[int, ...]
    received: tuple[int, ...]
    server_memory: int
    memory: tuple[int, ...]


class Meter:
    """Measures one step after the other."""

    def __init__(self, group: Group, learner: Learner) -> None:
        self._group, self._learner = group, learner
        self.results: list[MicroBatchResult] = []
        self._started = time.perf_counter()
        self._traffic = Traffic()

    def start(self) -> None:
        """A step begins."""
        self.results = []
        # what loading and saving take is not the step's
        forget_peak()
        self._traffic = self._learner.traffic()
        self._started = time.perf_counter()

    def gather(self, num_micro_batches: int) -> StepTotals:
        """Sums by micro-batch index, in float64, the same on every rank."""
        rows = torch.zeros(num_micro_batches, 4, dtype=torch.float64)
        for r in self.results:
            rows[r.index] = torch.tensor(
                [r.loss_sum, r.target_tokens, r.real_tokens, r.padded_tokens], dtype=torch.float64
            )
        parts = self._group.all_gather(rows)
        total = torch.zeros(4, dtype=torch.float64)
        for index in range(num_micro_batches):
            total += parts[index % self._group.world_size][index]
        return StepTotals(float(total[0]), *(int(value) for value in total[1:]))

    def step_record(self, step: int, epoch: int, totals: StepTotals, update: Update, norm: float) -> StepRecord:
        """The log's line; all ranks call it together."""
        seconds = time.perf_counter() - self._started
        used = self._gather_traffic()
        return StepRecord(
            step=step,
            epoch=epoch,
            loss=totals.loss_sum / max(1, totals.target_tokens),
            target_tokens=totals.target_tokens,
            real_tokens=totals.real_tokens,
            padded_tokens=totals.padded_tokens,
            tokens_per_second=totals.real_tokens / seconds,
            grad_norm=norm,
            clip_factor=update.clip_factor,
            learning_rate=update.learning_rate,
            skipped=update.skip,
            seconds=seconds,
            memory_bytes=max(used.memory),
            memory_sum_bytes=sum(used.memory),
            server_memory_bytes=used.server_memory,
            bytes_sent=sum(used.sent),
            bytes_sent_max=max(used.sent),
            bytes_received=sum(used.received),
            bytes_received_max=max(used.received),
        )

    def epoch_record(self, steps: Sequence[StepRecord]) -> EpochRecord:
        """Totals over the steps of one epoch."""
        targets = sum(s.target_tokens for s in steps)
        seconds, real = sum(s.seconds for s in steps), sum(s.real_tokens for s in steps)
        norms = grad_norms(steps)
        return EpochRecord(
            epoch=steps[-1].epoch,
            step=steps[-1].step,
            loss=sum(s.loss * s.target_tokens for s in steps) / max(1, targets),
            grad_norm_mean=sum(norms) / len(norms),
            grad_norm_max=max(norms),
            target_tokens=targets,
            real_tokens=real,
            padded_tokens=sum(s.padded_tokens for s in steps),
            seconds=seconds,
            tokens_per_second=real / seconds,
            memory_bytes=max(s.memory_bytes for s in steps),
            memory_sum_bytes=max(s.memory_sum_bytes for s in steps),
            server_memory_bytes=max(s.server_memory_bytes for s in steps),
            bytes_sent=sum(s.bytes_sent for s in steps),
            bytes_received=sum(s.bytes_received for s in steps),
        )

    def _gather_traffic(self) -> _Used:
        """By rank, since the step began; of a worker's memory the largest that any rank knows."""
        now, before = self._learner.traffic(), self._traffic
        own = [now.sent - before.sent, now.received - before.received, now.memory_bytes, peak_memory()]
        rows = [row.tolist() for row in self._group.all_gather(torch.tensor(own))]
        sent, received, server_memory, memory = zip(*rows, strict=True)
        return _Used(sent, received, max(server_memory), memory)
