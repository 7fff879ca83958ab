"""The middle of the model: what a staged model asks of it, and its execution on a body server.

Each stage is a graph of its own, cut at leaf tensors; its gradients have the bits that the uncut graph gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import torch
from torch import Tensor, nn

from torso.errors import StateLostError
from torso.parallel.traffic import Traffic
from torso.randomness import DropoutKey, dropout_scope
from torso.training.checkpoint import Checkpoint
from torso.training.part import Norms, TrainablePart, Update


class Middle(Protocol):
    """Body blocks on a server, say. All ranks call open, prepare, commit and state together.

    Raises TransportError or StateLostError when the step must be rolled back, RefusedError when it is hopeless.
    """

    def open(self, checkpoint: Checkpoint | None) -> None:
        """Stand at the checkpoint (None: at step 0, initialised by seed)."""

    def forward(self, step: int, index: int, activations: Tensor, lengths: Sequence[int]) -> Future[Tensor]:
        """Activations [B, T, C] of one micro-batch through the body."""

    def backward(self, step: int, index: int, activation_grad: Tensor) -> Future[Tensor]:
        """The gradient [B, T, C] at the body's input; its adapter gradients are kept until `prepare`."""

    def prepare(self, step: int, num_micro_batches: int) -> Norms:
        """Combine the body's gradients of the step."""

    def commit(self, step: int, update: Update) -> None:
        """Make the update."""

    def state(self, step: int) -> dict[str, Tensor]:
        """Adapter and optimizer of the body at `step`; on rank 0, empty elsewhere."""

    def traffic(self) -> Traffic:
        """What this rank sent and received so far."""

    def close(self) -> None:
        """This rank needs the body no longer."""


class BodyExecution:
    """Forward and backward of the body for the micro-batches of the step under way."""

    def __init__(self, body: nn.Module, part: TrainablePart, seed: int) -> None:
        self.body = body
        self.part = part
        self._seed = seed
        self._graphs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def forward(self, step: int, index: int, activations: Tensor) -> Tensor:
        """[B, T, C] → [B, T, C]; the graph is held until `backward`."""
        x = activations.detach().requires_grad_()
        with dropout_scope(DropoutKey(self._seed, step, index)), torch.enable_grad():
            y: Tensor = self.body(x)
        self._graphs[step, index] = (x, y)
        return y.detach()

    def backward(self, step: int, index: int, activation_grad: Tensor) -> Tensor:
        """Gradient at the output → gradient at the input; keeps the adapter's. Raises StateLostError."""
        if (step, index) not in self._graphs:
            raise StateLostError(f"no forward of step {step}, micro-batch {index} is held", code="missing_forward")
        x, y = self._graphs.pop((step, index))
        parameters = list(self.part.parameters.values())
        gradients: Sequence[Tensor] = torch.autograd.grad(y, [x, *parameters], activation_grad, materialize_grads=True)
        self.part.keep(index, gradients[1:])
        return gradients[0]

    def discard(self) -> None:
        """Forget graphs and gradients of the step under way."""
        self._graphs.clear()
        self.part.discard()
