"""The body on a server for evaluation and decoding: a job of its own, apart from any training."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torso.errors import ServerError
from torso.split.client.job import JobSpec
from torso.split.client.router import Router
from torso.split.client.servers import find
from torso.split.client.transport import Answer, Transport, persist
from torso.split.protocol.messages import (
    Acknowledgement,
    GenerationForwardRequest,
    GenerationOpenRequest,
    InferenceAnswer,
    InferenceRequest,
    Message,
    OpenAnswer,
)
from torso.training.part import fingerprint

PATIENCE_S = 30.0


class RemoteInference:
    """Seeds a job with an adapter and runs activations through it; use as a context manager."""

    def __init__(
        self, spec: JobSpec, servers: Sequence[str], transport: Transport, step: int, state: Mapping[str, Tensor]
    ) -> None:
        self._transport = transport
        self._job = secrets.token_hex(16)
        self._identity: dict[str, Any] = {"generation": 1, "session": secrets.token_hex(8)}
        self._workers = persist(lambda: find(transport, servers, spec), PATIENCE_S)
        self._router = Router(self._workers, 0)
        expected = fingerprint(state, step) if state else None
        request = spec.open_request(job=self._job, step=step, state=dict(state), fingerprint=expected, **self._identity)
        persist(lambda: transport.call("POST", f"{self._workers[0]}/v1/jobs", OpenAnswer, request), PATIENCE_S)

    def __enter__(self) -> RemoteInference:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            path = f"v1/jobs/{self._job}?generation=1&session={self._identity['session']}"
            self._transport.call("DELETE", f"{self._workers[0]}/{path}", Acknowledgement)
        except ServerError:
            pass  # the server frees jobs that are not heard from by itself

    def infer(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """[B, T, C] through the body, nothing kept."""
        message = InferenceRequest(**self._identity, lengths=list(lengths), activations=x)
        url = self._router.take()
        try:
            return self.ask("POST", f"{url}/v1/jobs/{self._job}/inference", InferenceAnswer, message).activations
        finally:
            self._router.give_back(url)

    def open(self, batch: int) -> RemoteGeneration:
        """A key-value cache for `batch` sequences, on the least busy worker."""
        name, url = secrets.token_hex(8), self._router.take()
        path = f"{url}/v1/jobs/{self._job}/generations"
        message = GenerationOpenRequest(**self._identity, generation_id=name, batch=batch)
        self.ask("POST", path, Acknowledgement, message)
        return RemoteGeneration(self, f"{path}/{name}", self._identity, lambda: self._router.give_back(url))

    def ask(self, method: str, url: str, answer: type[Answer], message: Message | None = None) -> Answer:
        """One request, repeated while that can help."""
        return persist(lambda: self._transport.call(method, url, answer, message), PATIENCE_S)


class RemoteGeneration:
    """One batch being decoded; it stays on the worker that holds its cache."""

    def __init__(self, owner: RemoteInference, url: str, identity: dict[str, Any], on_close: Any) -> None:
        self._owner, self._url, self._identity, self._on_close = owner, url, identity, on_close
        self._position = 0

    def forward(self, x: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        """[B, t, C] → [B, t, C] over the cache; `rows` first picks rows of the cached batch.

        The position makes a repeated request harmless: the worker answers it again from what it kept.
        """
        message = GenerationForwardRequest(
            **self._identity,
            position=self._position,
            lengths=list(lengths),
            rows=None if rows is None else list(rows),
            activations=x,
        )
        answer = self._owner.ask("POST", self._url, InferenceAnswer, message)
        self._position += x.shape[1]
        return answer.activations

    def close(self) -> None:
        """Free the cache."""
        self._on_close()
        query = f"?generation={self._identity['generation']}&session={self._identity['session']}"
        self._owner.ask("DELETE", self._url + query, Acknowledgement)
