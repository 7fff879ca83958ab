"""A whole model on every rank, or in shares on all of them, under a data-parallel strategy that it does not know.

Gradients of micro-batches are never kept side by side: they are added up as they come, in the order of their indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torso import faults
from torso.errors import CheckpointError, GroupError
from torso.parallel.group import Group
from torso.parallel.strategy import Strategy, Wave
from torso.parallel.traffic import Traffic
from torso.randomness import DropoutKey, dropout_scope
from torso.training.agreement import on_leader
from torso.training.checkpoint import SCALE, Checkpoint
from torso.training.config import OptimizerConfig
from torso.training.learner import MicroBatch, MicroBatchResult
from torso.training.optimizer import MOMENTS, AdamW
from torso.training.part import Norms, Update
from torso.training.scaler import LossScaler

IDLE = torch.zeros(1, 2, dtype=torch.int64)
"""What a rank without a micro-batch computes, so that the others do not wait: two tokens, none of them a target."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a whole model's training starts from."""

    initial: Callable[[str], Tensor]
    """The value of a trainable parameter that the module was built with, whole, by name; the same on every rank."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of the same, without making it."""
    optimizer: OptimizerConfig
    seed: int
    """Of dropout."""
    device: torch.device
    scaled: bool = False
    """Whether losses are scaled, for fp16."""
    after_update: Callable[[], None] = lambda: None
    """Called when parameters have changed, for modules that keep something that follows from them."""


class WholeModel:
    """See Learner."""

    def __init__(self, strategy: Strategy, group: Group, recipe: Recipe) -> None:
        self._strategy, self._group, self._recipe = strategy, group, recipe
        self._optimizer = AdamW(strategy.pieces, recipe.optimizer)
        self._scaler = LossScaler() if recipe.scaled else None
        self._gradients: dict[str, Tensor] = {}
        self._as_built = True

    def open(self, load: Callable[[], Checkpoint] | None) -> None:
        """See Learner; rank 0 alone reads the checkpoint."""
        self._discard()
        if load is not None:
            self._take_over(load)
        elif not self._as_built:
            self._start_again()
        self._as_built = False
        self._recipe.after_update()

    def compute(self, step: int, micro_batches: Sequence[MicroBatch]) -> list[MicroBatchResult]:
        """See Learner; a rank without a micro-batch in a wave keeps the others company."""
        self._discard()
        ranks, results = self._group.world_size, list[MicroBatchResult]()
        for first in range(0, len(micro_batches), ranks):
            wave = micro_batches[first : first + ranks]
            with faults.around("client", self._group.rank, "wave", step):
                results += self._wave(step, wave, is_last=first + ranks >= len(micro_batches))
        return results

    def prepare(self, step: int, num_micro_batches: int) -> Norms:
        """See Learner."""
        self._gradients = self._strategy.gradients()
        found, scale = self._strategy.squared_norms(self._gradients), self._scale
        squared = {name: value / scale / scale for name, value in found.items()}
        return Norms(squared, all(value < float("inf") for value in squared.values()))

    def commit(self, step: int, update: Update) -> None:
        """See Learner."""
        if not update.skip:
            divisor = update.divisor * self._scale
            self._optimizer.update(self._gradients, divisor, update.clip_factor, update.learning_rate)
        if self._scaler is not None:
            self._scaler.update(overflowed=update.skip)
        self._discard()
        self._recipe.after_update()

    def state(self, step: int) -> dict[str, Tensor]:
        """See Learner; nothing is copied that this rank holds whole."""
        state: dict[str, Tensor] = {}
        for name, piece in self._strategy.pieces.items():
            shares = {"adapter": piece} | {moment: self._optimizer.moments[moment][name] for moment in MOMENTS}
            for kind, share in shares.items():
                whole = self._strategy.whole(name, share)
                if self._group.rank == 0:
                    state[f"{kind}:{name}"] = whole.detach().cpu()
        if self._group.rank != 0:
            return {}
        scale = {} if self._scaler is None else {SCALE: self._scaler.state()}
        return state | scale | {"optimizer_step": torch.tensor([self._optimizer.num_updates])}

    def traffic(self) -> Traffic:
        """See Learner."""
        return self._strategy.traffic()

    def close(self) -> None:
        """See Learner."""

    def _wave(self, step: int, wave: Sequence[MicroBatch], is_last: bool) -> list[MicroBatchResult]:
        with self._strategy.wave(Wave(len(wave), is_last)):
            if self._group.rank < len(wave):
                return [self._one(step, wave[self._group.rank])]
            self._run(IDLE, torch.zeros_like(IDLE, dtype=torch.bool))
            return []

    @property
    def _scale(self) -> float:
        return 1.0 if self._scaler is None else self._scaler.scale

    def _one(self, step: int, batch: MicroBatch) -> MicroBatchResult:
        with dropout_scope(DropoutKey(self._recipe.seed, step, batch.index)):
            return MicroBatchResult.of(batch, self._run(batch.token_ids, batch.target_mask))

    def _run(self, token_ids: Tensor, target_mask: Tensor) -> Tensor:
        """Forward and backward; returns the loss."""
        device = self._recipe.device
        try:
            loss = self._strategy.loss(token_ids.to(device), target_mask.to(device))
            (loss * self._scale if self._scaler else loss).backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if self._group.world_size == 1:
                raise
            # a rank that fails here has left the others in a collective: the group must start again
            raise GroupError(
                f"rank {self._group.rank} could not go on: {str(error).splitlines()[0]}",
                "Where it lost another rank, see how that one ended.",
            ) from error
        return loss

    def _discard(self) -> None:
        self._gradients = {}
        self._strategy.discard()

    @torch.no_grad()
    def _start_again(self) -> None:
        for name, piece in self._strategy.pieces.items():
            piece.copy_(self._strategy.piece(name, self._recipe.initial(name)))
            for moment in MOMENTS:
                self._optimizer.moments[moment][name].zero_()
        self._optimizer.num_updates = 0
        if self._scaler is not None:
            self._scaler.load(None)

    def _take_over(self, load: Callable[[], Checkpoint]) -> None:
        """Rank 0 hands the checkpoint out, one tensor after the other."""
        state: dict[str, Tensor] = {}

        def read() -> dict[str, Any]:
            state.update(load().select(self._strategy.pieces))
            for name in self._strategy.pieces:
                self._check(name, state)
            scale = state[SCALE].tolist() if SCALE in state else None
            return {"updates": int(state["optimizer_step"]), "scale": scale}

        found = on_leader(self._group, read)
        self._optimizer.num_updates = found["updates"]
        if self._scaler is not None:
            self._scaler.load(None if found["scale"] is None else torch.tensor(found["scale"], dtype=torch.float64))
        for name, piece in self._strategy.pieces.items():
            shares = {"adapter": piece} | {moment: self._optimizer.moments[moment][name] for moment in MOMENTS}
            for kind, share in shares.items():
                self._receive(name, share, state.pop(f"{kind}:{name}", None))

    @torch.no_grad()
    def _receive(self, name: str, share: Tensor, whole: Tensor | None) -> None:
        received = self._group.broadcast(torch.empty(self._recipe.shapes[name]) if whole is None else whole)
        share.copy_(self._strategy.piece(name, received))

    def _check(self, name: str, state: dict[str, Tensor]) -> None:
        expected = self._recipe.shapes[name]
        found = state[f"adapter:{name}"]
        if tuple(found.shape) != expected or found.dtype != torch.float32:
            text = f"{name} is {tuple(found.shape)} {found.dtype}, expected {expected} torch.float32"
            raise CheckpointError(f"the checkpoint does not fit the model: {text}")
