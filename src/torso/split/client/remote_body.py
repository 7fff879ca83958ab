"""The body on a server, as a `Middle` of the training loop."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from torso import faults
from torso.errors import ServerError
from torso.parallel.group import Group
from torso.parallel.traffic import Traffic
from torso.split.client.job import JobSpec
from torso.split.client.router import Router
from torso.split.client.servers import open_job
from torso.split.client.transport import Answer, Transport, persist
from torso.split.protocol.messages import (
    Acknowledgement,
    BackwardAnswer,
    BackwardRequest,
    CommitAnswer,
    CommitRequest,
    ForwardAnswer,
    ForwardRequest,
    Message,
    PrepareAnswer,
    PrepareRequest,
    StateAnswer,
)
from torso.training.agreement import on_leader
from torso.training.checkpoint import Checkpoint
from torso.training.part import Norms, Update, fingerprint

STEP_PATIENCE_S = 3.0
"""How long one request of a step is repeated before the step is rolled back."""


@dataclass(frozen=True)
class _Session:
    """One opening of the job, known to all ranks."""

    generation: int
    session: str
    workers: list[str]
    """By rank; the first is the leader."""


class RemoteBody:
    """Forward and backward go to the least busy worker, from any rank; the rest is the leader rank's."""

    def __init__(
        self,
        *,
        job: str,
        spec: JobSpec,
        servers: Sequence[str],
        transport: Transport,
        group: Group,
        raise_generation: Callable[[], int],
        window: int = 4,
        patience_s: float = 600.0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._job, self._spec, self._servers = job, spec, servers
        self._transport, self._group, self._patience_s = transport, group, patience_s
        self._raise_generation = raise_generation
        self._on_message = on_message
        self._pool = ThreadPoolExecutor(window, thread_name_prefix="wire")
        self._session = _Session(0, "", [])
        self._router = Router([""], 0)
        self._served_by: dict[tuple[int, int], str] = {}
        self._fingerprint = ""
        self._server_memory = 0

    def open(self, checkpoint: Checkpoint | None) -> None:
        """See Middle: seed the job on a server from the checkpoint, under a new generation."""

        def work() -> dict[str, Any]:
            generation, session = self._raise_generation(), secrets.token_hex(8)
            return persist(lambda: self._open_once(checkpoint, generation, session), self._patience_s, self._on_message)

        with faults.around("client", self._group.rank, "open", checkpoint.step if checkpoint else 0):
            self._session = _Session(**on_leader(self._group, work))
        self._router = Router(self._session.workers, self._group.rank)
        self._served_by.clear()

    def forward(self, step: int, index: int, activations: Tensor, lengths: Sequence[int]) -> Future[Tensor]:
        """See Middle."""
        return self._pool.submit(self._forward, step, index, activations, list(lengths))

    def backward(self, step: int, index: int, activation_grad: Tensor) -> Future[Tensor]:
        """See Middle; goes where the forward went, for there its graph is."""
        return self._pool.submit(self._backward, step, index, activation_grad)

    def prepare(self, step: int, num_micro_batches: int) -> Norms:
        """See Middle."""

        def work() -> dict[str, Any]:
            message = PrepareRequest(**self._identity(), num_micro_batches=num_micro_batches)
            answer = self._lead("POST", f"steps/{step}/prepare", PrepareAnswer, message)
            return {"squared": answer.squared_norms, "finite": answer.finite}

        with faults.around("client", self._group.rank, "prepare", step):
            return Norms(**on_leader(self._group, work))

    def commit(self, step: int, update: Update) -> None:
        """See Middle."""

        def work() -> dict[str, Any]:
            message = CommitRequest(**self._identity(), **asdict(update), fingerprint_before=self._fingerprint)
            answer = self._lead("POST", f"steps/{step}/commit", CommitAnswer, message)
            self._fingerprint, self._server_memory = answer.fingerprint, answer.memory_bytes
            return {}

        with faults.around("client", self._group.rank, "commit", step):
            on_leader(self._group, work)
        self._served_by.clear()

    def state(self, step: int) -> dict[str, Tensor]:
        """See Middle."""
        fetched: dict[str, Tensor] = {}

        def work() -> dict[str, Any]:
            query = f"state?step={step}&generation={self._session.generation}&session={self._session.session}"
            fetched.update(self._lead("GET", query, StateAnswer).state)
            return {}

        with faults.around("client", self._group.rank, "state", step):
            on_leader(self._group, work)
        return fetched

    def traffic(self) -> Traffic:
        """See Middle."""
        return Traffic(self._transport.sent, self._transport.received, self._server_memory)

    def close(self) -> None:
        """Give the job's memory on the server back, if it can be reached, and all connections."""
        self._pool.shutdown(wait=True)
        if self._group.rank == 0 and self._session.workers:
            query = f"generation={self._session.generation}&session={self._session.session}"
            url = f"{self._session.workers[0]}/v1/jobs/{self._job}?{query}"
            # a server that cannot be reached frees the job by itself after a while
            with contextlib.suppress(ServerError):
                self._transport.call("DELETE", url, Acknowledgement)
        self._transport.close()

    def _open_once(self, checkpoint: Checkpoint | None, generation: int, session: str) -> dict[str, Any]:
        step = checkpoint.step if checkpoint else 0
        state = checkpoint.select(checkpoint.names(self._spec.cuts.body)) if checkpoint else {}
        expected = fingerprint(state, step) if checkpoint else None
        request = self._spec.open_request(self._job, generation, session, step, state, expected)
        workers, answer = open_job(self._transport, self._servers, self._spec, request)
        self._fingerprint = answer.fingerprint
        return {"generation": generation, "session": session, "workers": workers}

    def _forward(self, step: int, index: int, activations: Tensor, lengths: list[int]) -> Tensor:
        message = ForwardRequest(**self._identity(), lengths=lengths, activations=activations)
        url = self._router.take()
        self._served_by[step, index] = url
        try:
            with faults.around("client", self._group.rank, "forward", step):
                return self._ask(f"{url}/{self._path(step, index)}/forward", ForwardAnswer, message).activations
        finally:
            self._router.give_back(url)

    def _backward(self, step: int, index: int, gradient: Tensor) -> Tensor:
        message = BackwardRequest(**self._identity(), activation_grad=gradient)
        url = self._router.take(self._served_by[step, index])
        try:
            with faults.around("client", self._group.rank, "backward", step):
                return self._ask(f"{url}/{self._path(step, index)}/backward", BackwardAnswer, message).activation_grad
        finally:
            self._router.give_back(url)

    def _path(self, step: int, index: int) -> str:
        return f"v1/jobs/{self._job}/steps/{step}/microbatches/{index}"

    def _identity(self) -> dict[str, Any]:
        return {"generation": self._session.generation, "session": self._session.session}

    def _lead(self, method: str, path: str, answer: type[Answer], message: Message | None = None) -> Answer:
        """A request to the leading worker."""
        url = f"{self._session.workers[0]}/v1/jobs/{self._job}/{path}"
        return persist(lambda: self._transport.call(method, url, answer, message), STEP_PATIENCE_S)

    def _ask(self, url: str, answer: type[Answer], message: Message) -> Answer:
        return persist(lambda: self._transport.call("POST", url, answer, message), STEP_PATIENCE_S)
