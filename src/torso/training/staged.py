"""A model in stages: head and tail on this rank, the middle wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from torso.parallel.group import Group
from torso.parallel.traffic import Traffic
from torso.training.body import Middle
from torso.training.checkpoint import Checkpoint
from torso.training.ends import Ends
from torso.training.learner import MicroBatch, MicroBatchResult
from torso.training.part import Norms, Update


class StagedModel:
    """See Learner; `window` is how many micro-batches are in flight at once."""

    def __init__(self, ends: Ends, middle: Middle, group: Group, window: int = 4) -> None:
        self._ends, self._middle, self._group, self._window = ends, middle, group, window
        self._initial = ends.part.state()

    def open(self, load: Callable[[], Checkpoint] | None) -> None:
        """See Learner; every rank reads the checkpoint."""
        checkpoint = None if load is None else load()
        part = self._ends.part
        part.discard()
        part.load(self._initial if checkpoint is None else checkpoint.select(part.parameters))
        self._middle.open(checkpoint)

    def compute(self, step: int, micro_batches: Sequence[MicroBatch]) -> list[MicroBatchResult]:
        """See Learner."""
        own = micro_batches[self._group.rank :: self._group.world_size]
        return self._ends.run(self._middle, step, own, self._window)

    def prepare(self, step: int, num_micro_batches: int) -> Norms:
        """See Learner."""
        ends = self._ends.part.combine(num_micro_batches, self._group, tag=(step,))
        body = self._middle.prepare(step, num_micro_batches)
        return Norms(ends.squared | body.squared, ends.finite and body.finite)

    def commit(self, step: int, update: Update) -> None:
        """See Learner."""
        self._middle.commit(step, update)
        self._ends.part.apply(update)

    def state(self, step: int) -> dict[str, Tensor]:
        """See Learner."""
        body = self._middle.state(step)
        return self._ends.part.state() | body if self._group.rank == 0 else {}

    def traffic(self) -> Traffic:
        """See Learner."""
        return self._middle.traffic()

    def close(self) -> None:
        """See Learner."""
        self._middle.close()
