"""Data-parallel strategies: what they have in common, and the one that leaves a module as it is.

A strategy is applied from outside to a module whose call gives a scalar loss. It knows neither data nor model. Every
rank takes part in every *wave*: in each, rank r computes the r-th of the wave's micro-batches, so that rank r of W gets
the micro-batches whose index is congruent to r modulo W.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from torso.parallel.traffic import Traffic


@dataclass(frozen=True)
class Wave:
    """One micro-batch of each rank, forward and backward, on all ranks at the same time."""

    num_real: int
    """Ranks 0 … num_real - 1 compute a micro-batch; what the others compute (they must call too) does not count."""
    is_last: bool
    """Whether the step's gradients are complete after it."""


class Strategy(Protocol):
    """A module applied to a group of ranks. All ranks call every method together, but `piece` and `traffic`."""

    @property
    def pieces(self) -> Mapping[str, Tensor]:
        """This rank's share of each trainable parameter, by name, in the module's order; to be changed in place."""

    def loss(self, *inputs: Tensor) -> Tensor:
        """The module's loss, a scalar; call it and `backward` within `wave`."""

    def wave(self, wave: Wave) -> AbstractContextManager[None]:
        """Surrounds forward and backward of this rank's micro-batch."""

    def gradients(self) -> dict[str, Tensor]:
        """After the last wave: this rank's share of the sum of all gradients of the step."""

    def squared_norms(self, gradients: Mapping[str, Tensor]) -> dict[str, float]:
        """Of each whole parameter's gradient, added in float64; the same on every rank."""

    def discard(self) -> None:
        """Forget the gradients of the step under way."""

    def whole(self, name: str, share: Tensor) -> Tensor:
        """A tensor laid out as the parameter `name`, put together from all ranks' shares."""

    def piece(self, name: str, whole: Tensor) -> Tensor:
        """This rank's share of a whole tensor; no collective."""

    def traffic(self) -> Traffic:
        """What this rank sent and received so far."""


class Single:
    """One rank that holds everything; gradients are added in the order of the waves."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.pieces: Mapping[str, Tensor] = {name: p.detach() for name, p in self._parameters.items()}

    def loss(self, *inputs: Tensor) -> Tensor:
        """See Strategy."""
        loss: Tensor = self._module(*inputs)
        return loss

    @contextmanager
    def wave(self, wave: Wave) -> Iterator[None]:
        """See Strategy."""
        yield

    def gradients(self) -> dict[str, Tensor]:
        """See Strategy."""
        return gradients_of(self._parameters)

    def squared_norms(self, gradients: Mapping[str, Tensor]) -> dict[str, float]:
        """See Strategy."""
        return {name: squared_norm(gradient) for name, gradient in gradients.items()}

    def discard(self) -> None:
        """See Strategy."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def whole(self, name: str, share: Tensor) -> Tensor:
        """See Strategy."""
        return share

    def piece(self, name: str, whole: Tensor) -> Tensor:
        """See Strategy."""
        return whole

    def traffic(self) -> Traffic:
        """See Strategy."""
        return Traffic()


def gradients_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """What autograd has added up; zeros where no micro-batch used a parameter."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}


def squared_norm(gradient: Tensor) -> float:
    """Each square and the sum in float64; the bits that the promises are about."""
    return float(gradient.double().square().sum())


def fast_squared_norm(gradient: Tensor) -> float:
    """The same without a copy in float64; its last bits may differ."""
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
