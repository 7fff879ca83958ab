"""One job on one worker: its body, where it stands, and the answers kept for repeated requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torso.errors import CheckpointError, RefusedError, StateLostError
from torso.model.cache import KeyValueCache
from torso.parallel.arithmetic import DTYPES
from torso.parallel.group import Group
from torso.split.protocol.messages import CommitRequest, GenerationForwardRequest, OpenRequest
from torso.training.body import BodyExecution
from torso.training.part import Norms, Update


@dataclass
class Generation:
    """A batch being decoded."""

    cache: KeyValueCache
    batch: int
    position: int = 0
    answered_from: int = -1
    """Position of the request that was answered last."""
    answer: Tensor | None = None


@dataclass
class Job:
    """Everything of one opening of a job; a newer opening replaces it whole."""

    request: OpenRequest
    execution: BodyExecution
    step: int
    fingerprint: str
    heard_from: float = field(default_factory=time.monotonic)
    lock: threading.RLock = field(default_factory=threading.RLock)
    answers: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    prepared: tuple[int, Norms] | None = None
    committed_from: str = ""
    """Fingerprint before the last commit."""
    snapshot: tuple[int, str, dict[str, Tensor]] | None = None
    generations: dict[str, Generation] = field(default_factory=dict)

    @classmethod
    def seed(cls, request: OpenRequest, execution: BodyExecution) -> Job:
        """A job at the request's step and state. Raises RefusedError or StateLostError."""
        try:
            if request.state:
                execution.part.load(request.state)
        except CheckpointError as error:
            raise RefusedError(
                error.message, "Do adapter settings and state belong together?", "bad_message"
            ) from error
        fingerprint = execution.part.fingerprint(request.step)
        if request.fingerprint not in (None, fingerprint):
            raise StateLostError("the state that arrived is not the one that was sent", code="fingerprint_mismatch")
        return cls(request, execution, request.step, fingerprint)

    def forward(self, step: int, index: int, activations: Tensor) -> Tensor:
        """[B, T, C] → [B, T, C]; a repeated request gets the first answer."""
        with self.lock:
            self._check_step(step)
            key = ("forward", index)
            if key not in self.answers:
                self.answers[key] = self.execution.forward(step, index, activations).cpu()
            return self.answers[key]

    def backward(self, step: int, index: int, gradient: Tensor) -> Tensor:
        """[B, T, C] → [B, T, C]; a repeated request gets the first answer."""
        with self.lock:
            self._check_step(step)
            key = ("backward", index)
            if key not in self.answers:
                self._check_gradient(index, gradient)
                self.answers[key] = self.execution.backward(step, index, gradient).cpu()
            return self.answers[key]

    def indices(self, step: int) -> list[int]:
        """Micro-batches of the step whose gradients are here, or were when it was prepared."""
        with self.lock:
            self._check_step(step)
            if self.prepared is not None:
                return list(range(self.prepared[0]))
            return self.execution.part.indices

    def prepare(self, step: int, num_micro_batches: int, group: Group) -> Norms:
        """Combine over the group; a repeated request gets the first answer."""
        with self.lock:
            self._check_step(step)
            if self.prepared is None:
                tag = (int(self.request.job[:15], 16), step)
                norms = self.execution.part.combine(num_micro_batches, group, tag)
                self.prepared = (num_micro_batches, norms)
            return self.prepared[1]

    def commit(self, step: int, request: CommitRequest) -> str:
        """Make the update; one already made is acknowledged. Returns the fingerprint after it."""
        with self.lock:
            if step == self.step and request.fingerprint_before == self.committed_from:
                return self.fingerprint
            self._check_step(step)
            if request.fingerprint_before != self.fingerprint:
                raise StateLostError(f"step {step} does not follow the state held here", code="fingerprint_mismatch")
            if self.prepared is None:
                raise StateLostError(f"step {step} was not prepared", code="missing_micro_batches")
            update = Update(request.divisor, request.clip_factor, request.learning_rate, request.skip)
            self.execution.part.apply(update)
            self.committed_from, self.step = self.fingerprint, step
            self.fingerprint = self.execution.part.fingerprint(step)
            self.execution.discard()
            self.answers.clear()
            self.prepared = None
            return self.fingerprint

    def state(self, step: int) -> tuple[int, str, dict[str, Tensor]]:
        """(step, fingerprint, state) as it was at `step`; kept, so that a repeated fetch gets the same."""
        with self.lock:
            if self.snapshot is None or self.snapshot[0] != step:
                if step != self.step:
                    raise StateLostError(f"the job is at step {self.step}, not {step}", code="wrong_step")
                self.snapshot = (step, self.fingerprint, self.execution.part.state())
            return self.snapshot

    @torch.no_grad()
    def infer(self, activations: Tensor) -> Tensor:
        """[B, T, C] → [B, T, C], nothing kept."""
        with self.lock:
            output: Tensor = self.execution.body(activations)
            return output

    def open_generation(self, name: str, batch: int) -> None:
        """An empty cache; opening it again before the first chunk changes nothing."""
        with self.lock:
            layers = range(self.request.layers[0], self.request.layers[1])
            self.generations.setdefault(name, Generation(KeyValueCache(layers), batch))

    @torch.no_grad()
    def generate(self, name: str, request: GenerationForwardRequest, activations: Tensor) -> Tensor:
        """The next chunk over the cache; the last one again when its position is repeated."""
        with self.lock:
            held = self.generations.get(name)
            if held is None:
                raise StateLostError(f"no decoding {name} is held here", code="missing_forward")
            if request.position == held.answered_from and held.answer is not None:
                return held.answer
            _check_chunk(held, request, activations)
            if request.rows is not None:
                held.cache.select(request.rows)
                held.batch = len(request.rows)
            answer: Tensor = self.execution.body(activations, cache=held.cache, lengths=request.lengths)
            held.answered_from, held.position = request.position, request.position + activations.shape[1]
            held.answer = answer.cpu()
            return held.answer

    def check_activations(self, tensor: Tensor, lengths: Sequence[int] | None, width: int, longest: int) -> None:
        """Raise RefusedError unless the tensor is [B, T, C] of this job's width and dtype."""
        if tensor.dim() != 3 or tensor.shape[2] != width or 0 in tensor.shape or tensor.dtype != self.dtype:
            found = f"{list(tensor.shape)} {tensor.dtype}"
            raise RefusedError(f"activations are {found}, expected [B, T, {width}] {self.dtype}", "", "wrong_shape")
        if tensor.shape[1] > longest:
            raise RefusedError(f"{tensor.shape[1]} tokens, the model has {longest} positions", "Shorten.", "too_long")
        if lengths is not None and (
            len(lengths) != tensor.shape[0] or any(not 0 <= n <= tensor.shape[1] for n in lengths)
        ):
            raise RefusedError(f"lengths {list(lengths)[:8]} do not fit {list(tensor.shape)}", "", "wrong_shape")

    @property
    def dtype(self) -> torch.dtype:
        """What the job computes in."""
        return DTYPES[self.request.dtype]

    def _check_gradient(self, index: int, gradient: Tensor) -> None:
        """Before the graph is used up."""
        output = self.answers.get(("forward", index))
        if output is not None and output.shape != gradient.shape:
            text = f"the gradient is {list(gradient.shape)}, the activations were {list(output.shape)}"
            raise RefusedError(text, "", "wrong_shape")

    def _check_step(self, step: int) -> None:
        if step != self.step + 1:
            raise StateLostError(f"the job is at step {self.step}; step {step} does not follow", code="wrong_step")


def _check_chunk(held: Generation, request: GenerationForwardRequest, activations: Tensor) -> None:
    """All of it before the cache is touched."""
    if request.position != held.position:
        raise StateLostError(
            f"the decoding is at column {held.position}, not {request.position}", code="wrong_position"
        )
    rows = request.rows
    if rows is not None and any(not 0 <= row < held.batch for row in rows):
        raise RefusedError(f"rows {rows[:8]} of a batch of {held.batch}", "Rows count from 0.", "wrong_shape")
    batch = held.batch if rows is None else len(rows)
    if activations.shape[0] != batch:
        raise RefusedError(f"{activations.shape[0]} rows of activations, {batch} expected", "", "wrong_shape")
