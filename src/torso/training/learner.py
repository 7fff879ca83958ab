"""What the loop asks of the model that it trains, wherever its parts are and however they are shared out.

Two implementations: `StagedModel` (head and tail here, the middle on a server) and `WholeModel` (all of it, on one rank
or under a data-parallel strategy).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torso.parallel.traffic import Traffic
from torso.training.checkpoint import Checkpoint
from torso.training.part import Norms, Update


class MicroBatch(Protocol):
    """Sequences that go forward and backward together, padded on the right to their own longest."""

    @property
    def index(self) -> int:
        """Place in the step's order."""

    @property
    def token_ids(self) -> Tensor:
        """[B, T] int64."""

    @property
    def lengths(self) -> Tensor:
        """[B] int64: tokens of each sequence without padding."""

    @property
    def target_mask(self) -> Tensor:
        """[B, T] bool: tokens that are predicted and scored."""


@dataclass(frozen=True)
class MicroBatchResult:
    """What a micro-batch leaves beside its gradients."""

    index: int
    loss_sum: float
    target_tokens: int
    real_tokens: int
    padded_tokens: int

    @classmethod
    def of(cls, batch: MicroBatch, loss: Tensor) -> MicroBatchResult:
        """The micro-batch's counts beside the sum of its losses."""
        targets, real = int(batch.target_mask.sum()), int(batch.lengths.sum())
        return cls(batch.index, float(loss.detach()), targets, real, batch.token_ids.numel())


class Learner(Protocol):
    """A model, its trainable parameters and their optimizer. All ranks call each method together, but `traffic`.

    Raises TransportError or StateLostError when the step must be rolled back, RefusedError when it is hopeless, and
    GroupError when the ranks have lost each other.
    """

    def open(self, load: Callable[[], Checkpoint] | None) -> None:
        """Stand at the checkpoint that `load` reads (None: at step 0, initialised by seed)."""

    def compute(self, step: int, micro_batches: Sequence[MicroBatch]) -> list[MicroBatchResult]:
        """Forward and backward of this rank's share of the step's micro-batches: those congruent to its rank."""

    def prepare(self, step: int, num_micro_batches: int) -> Norms:
        """Combine the gradients of all ranks."""

    def commit(self, step: int, update: Update) -> None:
        """Make the update."""

    def state(self, step: int) -> dict[str, Tensor]:
        """Trained parameters and optimizer at `step`, good until the next step; on rank 0, empty elsewhere."""

    def traffic(self) -> Traffic:
        """What this rank sent and received so far."""

    def close(self) -> None:
        """This rank trains no more."""
