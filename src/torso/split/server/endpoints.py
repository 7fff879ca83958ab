"""What one worker does alone for a request: bytes in, a message out."""

from __future__ import annotations

from torch import Tensor

from torso.errors import RefusedError
from torso.split.protocol.codec import decode
from torso.split.protocol.messages import (
    Acknowledgement,
    BackwardAnswer,
    BackwardRequest,
    ForwardAnswer,
    ForwardRequest,
    GenerationForwardRequest,
    GenerationOpenRequest,
    Identified,
    InferenceAnswer,
    InferenceRequest,
    JobAnswer,
)
from torso.split.server.job import Job
from torso.split.server.worker import Worker


class Endpoints:
    """Runs in the worker's compute thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def status(self, job: str) -> JobAnswer:
        """Where the job stands."""
        held = self._worker.job(job)
        return JobAnswer(incarnation=self._worker.incarnation, step=held.step, fingerprint=held.fingerprint)

    def forward(self, body: bytes, kind: str, job: str, step: int, index: int) -> ForwardAnswer:
        """One micro-batch through the body."""
        request = decode(ForwardRequest, body, kind)
        held = self._worker.job(job, request)
        _check_limit("micro-batches of a step", index + 1, self._worker.settings.max_micro_batches)
        x = self._checked(held, request.activations, request.lengths)
        return ForwardAnswer(incarnation=self._worker.incarnation, activations=held.forward(step, index, x))

    def backward(self, body: bytes, kind: str, job: str, step: int, index: int) -> BackwardAnswer:
        """Its gradient back through the body."""
        request = decode(BackwardRequest, body, kind)
        held = self._worker.job(job, request)
        gradient = self._checked(held, request.activation_grad, None)
        return BackwardAnswer(
            incarnation=self._worker.incarnation, activation_grad=held.backward(step, index, gradient)
        )

    def infer(self, body: bytes, kind: str, job: str) -> InferenceAnswer:
        """Through the body, nothing kept."""
        request = decode(InferenceRequest, body, kind)
        held = self._worker.job(job, request)
        x = self._checked(held, request.activations, request.lengths)
        return InferenceAnswer(incarnation=self._worker.incarnation, activations=held.infer(x))

    def open_generation(self, body: bytes, kind: str, job: str) -> Acknowledgement:
        """A cache for decoding."""
        request = decode(GenerationOpenRequest, body, kind)
        held = self._worker.job(job, request)
        wanted = len(held.generations.keys() | {request.generation_id})
        _check_limit("decodings at once", wanted, self._worker.settings.max_decodings)
        held.open_generation(request.generation_id, request.batch)
        return Acknowledgement(incarnation=self._worker.incarnation)

    def generate(self, body: bytes, kind: str, job: str, generation_id: str) -> InferenceAnswer:
        """The next chunk of a decoding."""
        request = decode(GenerationForwardRequest, body, kind)
        held = self._worker.job(job, request)
        x = self._checked(held, request.activations, request.lengths)
        end, longest = request.position + x.shape[1], self._worker.base.config.n_positions
        if end > longest:
            raise RefusedError(f"{end} columns, the model has {longest} positions", "Decode less.", "too_long")
        return InferenceAnswer(
            incarnation=self._worker.incarnation, activations=held.generate(generation_id, request, x)
        )

    def close_generation(self, identity: Identified, job: str, generation_id: str) -> Acknowledgement:
        """Free a cache; one that is not here is gone already."""
        self._worker.job(job, identity).generations.pop(generation_id, None)
        return Acknowledgement(incarnation=self._worker.incarnation)

    def _checked(self, job: Job, tensor: Tensor, lengths: list[int] | None) -> Tensor:
        """The tensor on the worker's device, when it fits."""
        config, limit = self._worker.base.config, self._worker.settings.max_tokens
        job.check_activations(tensor, lengths, config.n_embd, config.n_positions)
        if tensor.shape[0] * tensor.shape[1] > limit:
            raise RefusedError(
                f"{tensor.shape[0]} x {tensor.shape[1]} tokens, at most {limit} are taken",
                "Use smaller micro-batches.",
                "too_large",
            )
        return tensor.to(self._worker.device)


def _check_limit(what: str, wanted: int, most: int) -> None:
    """What a job may hold in memory is bounded, whatever its client sends."""
    if wanted > most:
        raise RefusedError(f"{wanted} {what}, at most {most} are taken", "Use larger micro-batches.", "too_many")
