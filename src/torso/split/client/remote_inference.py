"""The body on a server for evaluation and decoding: a job of its own, apart from any training.

A server that is lost in the middle is no loss: the job is seeded again, on the next server that answers, and a decoding
sends its chunks once more, in the same pieces, so that the same bits come back.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from torso.errors import ServerError, StateLostError, TransportError
from torso.split.client.job import JobSpec
from torso.split.client.router import Router
from torso.split.client.servers import open_job
from torso.split.client.transport import Answer, Transport, persist
from torso.split.protocol.messages import (
    Acknowledgement,
    GenerationForwardRequest,
    GenerationOpenRequest,
    InferenceAnswer,
    InferenceRequest,
    Message,
)
from torso.training.part import fingerprint

Result = TypeVar("Result")

REQUEST_PATIENCE_S = 3.0
"""How long one request is repeated before the server is taken for lost."""
MOST_LOSSES = 20
"""So many in a row are no accident."""


class RemoteInference:
    """Seeds a job with an adapter and runs activations through it; use as a context manager."""

    def __init__(
        self,
        spec: JobSpec,
        servers: Sequence[str],
        transport: Transport,
        step: int,
        state: Mapping[str, Tensor],
        patience_s: float = 600.0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._spec, self._servers, self._transport = spec, list(servers), transport
        self._step, self._state = step, dict(state)
        self._patience_s, self._on_message = patience_s, on_message
        self._job = secrets.token_hex(16)
        self.generation, self._session = 0, ""
        self._seed()

    def __enter__(self) -> RemoteInference:
        return self

    def __exit__(self, *_: object) -> None:
        # a server that cannot be reached frees the job by itself
        with contextlib.suppress(ServerError):
            self._transport.call("DELETE", f"{self.job_url(self._workers[0])}?{self.query}", Acknowledgement)

    @property
    def identity(self) -> dict[str, Any]:
        """Of the present opening."""
        return {"generation": self.generation, "session": self._session}

    @property
    def query(self) -> str:
        """The same in a URL."""
        return f"generation={self.generation}&session={self._session}"

    def job_url(self, worker: str) -> str:
        """The job on a worker."""
        return f"{worker}/v1/jobs/{self._job}"

    def infer(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """[B, T, C] through the body, nothing kept."""
        return self.outlive(lambda: self._infer(x, lengths))

    def open(self, batch: int) -> RemoteGeneration:
        """A key-value cache for `batch` sequences, on the least busy worker."""
        return RemoteGeneration(self, batch)

    def ask(self, method: str, url: str, answer: type[Answer], message: Message | None = None) -> Answer:
        """One request, repeated while that can help."""
        return persist(lambda: self._transport.call(method, url, answer, message), REQUEST_PATIENCE_S)

    def outlive(self, work: Callable[[], Result]) -> Result:
        """What `work` returns; when the server is lost under it, it is done again on one that was seeded anew."""
        for _ in range(MOST_LOSSES):
            try:
                return work()
            except (StateLostError, TransportError) as error:
                self._on_message(f"the body server was lost ({error}); opening the job again")
                self._seed()
        return work()

    def take(self) -> tuple[str, Callable[[], None]]:
        """The least busy worker for one more request, and how to say that the request has ended."""
        router = self._router
        url = router.take()
        return url, lambda: router.give_back(url)

    def _seed(self) -> None:
        self.generation, self._session = self.generation + 1, secrets.token_hex(8)
        expected = fingerprint(self._state, self._step) if self._state else None
        request = self._spec.open_request(
            job=self._job, step=self._step, state=self._state, fingerprint=expected, **self.identity
        )
        self._workers, _ = persist(
            lambda: open_job(self._transport, self._servers, self._spec, request), self._patience_s, self._on_message
        )
        self._router = Router(self._workers, 0)

    def _infer(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        message = InferenceRequest(**self.identity, lengths=list(lengths), activations=x)
        url, done = self.take()
        try:
            return self.ask("POST", f"{self.job_url(url)}/inference", InferenceAnswer, message).activations
        finally:
            done()


class RemoteGeneration:
    """One batch being decoded; it stays on the worker that holds its cache, as long as that one lives."""

    def __init__(self, owner: RemoteInference, batch: int) -> None:
        self._owner, self._batch = owner, batch
        self._chunks: list[tuple[Tensor, list[int], list[int] | None]] = []
        self._opened_in, self._url, self._num_sent, self._position = 0, "", 0, 0
        self._give_back: Callable[[], None] = lambda: None

    def forward(self, x: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        """[B, t, C] → [B, t, C] over the cache; `rows` first picks rows of the cached batch.

        The position makes a repeated request harmless: the worker answers it again from what it kept.
        """
        self._chunks.append((x, list(lengths), None if rows is None else list(rows)))
        try:
            return self._owner.outlive(self._catch_up)
        except ServerError:
            self._chunks.pop()  # refused: the cache is as it was
            raise

    def close(self) -> None:
        """Free the cache; one that cannot be reached is freed with its job."""
        self._give_back()
        if self._opened_in == self._owner.generation:
            with contextlib.suppress(ServerError):
                self._owner.ask("DELETE", f"{self._url}?{self._owner.query}", Acknowledgement)
        self._opened_in, self._give_back = 0, lambda: None

    def _catch_up(self) -> Tensor:
        """Send what the present cache has not seen: the newest chunk, or all of them after a loss."""
        if self._opened_in != self._owner.generation:
            self._open()
        while True:
            output = self._send(*self._chunks[self._num_sent])
            self._num_sent += 1
            if self._num_sent == len(self._chunks):
                return output

    def _open(self) -> None:
        self._give_back()
        worker, self._give_back = self._owner.take()
        name, path = secrets.token_hex(8), f"{self._owner.job_url(worker)}/generations"
        message = GenerationOpenRequest(**self._owner.identity, generation_id=name, batch=self._batch)
        self._owner.ask("POST", path, Acknowledgement, message)
        self._url, self._num_sent, self._position = f"{path}/{name}", 0, 0
        self._opened_in = self._owner.generation

    def _send(self, x: Tensor, lengths: list[int], rows: list[int] | None) -> Tensor:
        message = GenerationForwardRequest(
            **self._owner.identity, position=self._position, lengths=lengths, rows=rows, activations=x
        )
        answer = self._owner.ask("POST", self._url, InferenceAnswer, message)
        self._position += x.shape[1]
        return answer.activations
