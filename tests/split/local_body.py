"""A body at home, for ranks that are threads of one process: a `Middle` without a wire."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from torch import Tensor

from torso.parallel.group import Group
from torso.parallel.traffic import Traffic
from torso.training.body import BodyExecution
from torso.training.checkpoint import Checkpoint
from torso.training.part import Norms, Update


class LocalBody:
    """The body at home: a `Middle` without a wire."""

    def __init__(self, execution: BodyExecution, group: Group) -> None:
        self._execution = execution
        self._part = execution.part
        self._group = group
        self._initial = self._part.state()

    def open(self, checkpoint: Checkpoint | None) -> None:
        """Of Middle."""
        self._execution.discard()
        self._part.load(self._initial if checkpoint is None else checkpoint.select(self._part.parameters))

    def forward(self, step: int, index: int, activations: Tensor, lengths: Sequence[int]) -> Future[Tensor]:
        """Of Middle."""
        return _done(self._execution.forward(step, index, activations))

    def backward(self, step: int, index: int, activation_grad: Tensor) -> Future[Tensor]:
        """Of Middle."""
        return _done(self._execution.backward(step, index, activation_grad))

    def prepare(self, step: int, num_micro_batches: int) -> Norms:
        """Of Middle."""
        return self._part.combine(num_micro_batches, self._group, tag=(step,))

    def commit(self, step: int, update: Update) -> None:
        """Of Middle."""
        self._part.apply(update)

    def state(self, step: int) -> dict[str, Tensor]:
        """Of Middle."""
        return self._part.state() if self._group.rank == 0 else {}

    def traffic(self) -> Traffic:
        """Of Middle."""
        return Traffic()

    def close(self) -> None:
        """Of Middle."""


def _done(value: Tensor) -> Future[Tensor]:
    future: Future[Tensor] = Future()
    future.set_result(value)
    return future
