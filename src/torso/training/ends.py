"""Head and tail of the model on a client rank, and the pipeline that sends micro-batches through the middle.

Several micro-batches are in flight at once; because gradients are kept per micro-batch and added by index, the order
in which they come back does not matter to the bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torso.model.loss import target_loss
from torso.model.stages import Head, Tail
from torso.randomness import DropoutKey, dropout_scope
from torso.training.body import Middle
from torso.training.learner import MicroBatch, MicroBatchResult
from torso.training.part import TrainablePart


@dataclass
class _InFlight:
    batch: MicroBatch
    head_output: Tensor
    tail_gradients: Sequence[Tensor] = ()
    result: MicroBatchResult | None = None


class Ends:
    """Head, tail and their trainable parameters (as one part, head first)."""

    def __init__(self, head: Head, tail: Tail, part: TrainablePart, seed: int, device: torch.device) -> None:
        self.head, self.tail, self.part = head, tail, part
        self._seed, self._device = seed, device
        self._head_parameters = _own(head, part)
        self._tail_parameters = _own(tail, part)

    def run(self, middle: Middle, step: int, batches: Iterable[MicroBatch], window: int) -> list[MicroBatchResult]:
        """Forward and backward of the micro-batches, at most `window` in flight; gradients go to `part`.

        Raises what the middle raises, after the requests in flight have ended.
        """
        waiting, flights, results = deque(batches), dict[Future[Tensor], _InFlight](), list[MicroBatchResult]()
        try:
            while waiting or flights:
                while waiting and len(flights) < window:
                    flight = self._head_forward(step, waiting.popleft())
                    flights[self._send(middle, step, flight)] = flight
                done, _ = wait(flights, return_when=FIRST_COMPLETED)
                for future in done:
                    flight = flights.pop(future)
                    if flight.result is None:
                        gradient = self._tail(step, flight, future.result())
                        flights[middle.backward(step, flight.batch.index, gradient)] = flight
                    else:
                        self._head_backward(flight, future.result())
                        results.append(flight.result)
        finally:
            wait(flights)
        return results

    def _send(self, middle: Middle, step: int, flight: _InFlight) -> Future[Tensor]:
        lengths = flight.batch.lengths.tolist()
        return middle.forward(step, flight.batch.index, flight.head_output.detach(), lengths)

    def _head_forward(self, step: int, batch: MicroBatch) -> _InFlight:
        with dropout_scope(DropoutKey(self._seed, step, batch.index)):
            return _InFlight(batch, self.head(batch.token_ids.to(self._device)))

    def _tail(self, step: int, flight: _InFlight, body_output: Tensor) -> Tensor:
        """Tail forward, loss and tail backward; returns the gradient at the body's output, [B, T, C]."""
        batch = flight.batch
        leaf = body_output.to(self._device).detach().requires_grad_()
        token_ids, mask = batch.token_ids.to(self._device), batch.target_mask.to(self._device)
        with dropout_scope(DropoutKey(self._seed, step, batch.index)):
            loss = target_loss(self.tail(leaf), self.tail.wte.weight, token_ids, mask)
        gradients = torch.autograd.grad(loss, [leaf, *self._tail_parameters], materialize_grads=True)
        flight.tail_gradients = gradients[1:]
        flight.result = MicroBatchResult.of(batch, loss)
        return gradients[0]

    def _head_backward(self, flight: _InFlight, gradient: Tensor) -> None:
        head_gradients: Sequence[Tensor] = ()
        if self._head_parameters:
            head_gradients = torch.autograd.grad(
                flight.head_output, self._head_parameters, gradient.to(self._device), materialize_grads=True
            )
        self.part.keep(flight.batch.index, [*head_gradients, *flight.tail_gradients])


def _own(stage: nn.Module, part: TrainablePart) -> list[nn.Parameter]:
    """The part's parameters that belong to this stage, in the part's order."""
    members = {id(p) for p in stage.parameters()}
    return [p for p in part.parameters.values() if id(p) in members]
