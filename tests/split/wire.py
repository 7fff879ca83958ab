"""One job spoken to by hand: every request of the protocol as a method, with random activations."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import httpx
import torch
from tests.split.harness import CONFIG, Recipe
from torch import Tensor

from torso.split.client.transport import Answer, Transport
from torso.split.protocol.messages import (
    Acknowledgement,
    BackwardAnswer,
    BackwardRequest,
    CommitAnswer,
    CommitRequest,
    ForwardAnswer,
    ForwardRequest,
    JobAnswer,
    Message,
    OpenAnswer,
    PrepareAnswer,
    PrepareRequest,
    StateAnswer,
)
from torso.split.protocol.problems import Problem
from torso.training.part import fingerprint

JSON = "application/json"
LENGTHS = [5, 3]


def tensor(step: int, index: int, salt: int = 0) -> Tensor:
    """[2, 5, C], the same for the same arguments."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * index + salt)
    return torch.randn(2, 5, CONFIG.n_embd, generator=generator)


class Wire:
    """A job on the workers at some URLs, the leader's first."""

    def __init__(self, urls: list[str], job: str = "", generation: int = 1, session: str = "") -> None:
        self.urls = urls
        self.job = job or secrets.token_hex(16)
        self.generation, self.session = generation, session or secrets.token_hex(8)
        self.client = httpx.Client(trust_env=False, timeout=20.0)
        self.transport = Transport(self.client)
        self.fingerprint = ""

    def close(self) -> None:
        """All connections."""
        self.client.close()

    def like(self, **changes: Any) -> Wire:
        """The same job as somebody else would speak of it."""
        fields = {"job": self.job, "generation": self.generation, "session": self.session} | changes
        other = Wire.__new__(Wire)
        other.__dict__.update(self.__dict__ | fields)
        return other

    @property
    def identity(self) -> dict[str, Any]:
        """What every message carries."""
        return {"generation": self.generation, "session": self.session}

    @property
    def query(self) -> str:
        """The same in a URL."""
        return f"generation={self.generation}&session={self.session}"

    def path(self, rest: str = "", worker: int = 0) -> str:
        """A URL of this job."""
        return f"{self.urls[worker]}/v1/jobs/{self.job}{rest}"

    def call(self, method: str, url: str, answer: type[Answer], message: Message | None = None) -> Answer:
        """One request, never repeated."""
        return self.transport.call(method, url, answer, message)

    def open(self, step: int = 0, state: dict[str, Tensor] | None = None, **changes: Any) -> OpenAnswer:
        """Open the job; `changes` replaces fields of the message."""
        state = state or {}
        expected = fingerprint(state, step) if state else None
        message = Recipe(folder=Path()).spec().open_request(
            self.job, self.generation, self.session, step, state, expected
        )  # fmt: skip
        answer = self.call("POST", f"{self.urls[0]}/v1/jobs", OpenAnswer, message.model_copy(update=changes))
        self.fingerprint = answer.fingerprint
        return answer

    def status(self, worker: int = 0) -> JobAnswer:
        """Where the job stands."""
        return self.call("GET", self.path(worker=worker), JobAnswer)

    def forward(self, step: int, index: int, worker: int = 0, x: Tensor | None = None) -> Tensor:
        """One micro-batch."""
        x = tensor(step, index) if x is None else x
        message = ForwardRequest(**self.identity, lengths=LENGTHS, activations=x)
        url = self.path(f"/steps/{step}/microbatches/{index}/forward", worker)
        return self.call("POST", url, ForwardAnswer, message).activations

    def backward(self, step: int, index: int, worker: int = 0, gradient: Tensor | None = None) -> Tensor:
        """Its gradient."""
        gradient = tensor(step, index, 5) if gradient is None else gradient
        message = BackwardRequest(**self.identity, activation_grad=gradient)
        url = self.path(f"/steps/{step}/microbatches/{index}/backward", worker)
        return self.call("POST", url, BackwardAnswer, message).activation_grad

    def prepare(self, step: int, num: int = 3) -> PrepareAnswer:
        """Combine."""
        message = PrepareRequest(**self.identity, num_micro_batches=num)
        return self.call("POST", self.path(f"/steps/{step}/prepare"), PrepareAnswer, message)

    def commit(self, step: int, before: str = "", **changes: Any) -> CommitAnswer:
        """Update."""
        fields: dict[str, Any] = {"divisor": 12.0, "clip_factor": 0.5, "learning_rate": 0.01, "skip": False} | changes
        message = CommitRequest(**self.identity, **fields, fingerprint_before=before or self.fingerprint)
        answer = self.call("POST", self.path(f"/steps/{step}/commit"), CommitAnswer, message)
        self.fingerprint = answer.fingerprint
        return answer

    def state(self, step: int) -> StateAnswer:
        """Adapter and optimizer."""
        return self.call("GET", self.path(f"/state?step={step}&{self.query}"), StateAnswer)

    def delete(self) -> Acknowledgement:
        """Give the memory back."""
        return self.call("DELETE", self.path(f"?{self.query}"), Acknowledgement)

    def micro_batch(self, step: int, index: int, worker: int = 0) -> None:
        """There and back."""
        self.forward(step, index, worker)
        self.backward(step, index, worker)

    def step(self, step: int, num: int = 3) -> str:
        """A whole step, micro-batches going round the workers; returns the fingerprint after it."""
        for index in range(num):
            self.micro_batch(step, index, index % len(self.urls))
        self.prepare(step, num)
        return self.commit(step).fingerprint

    def problem(self, method: str, url: str, **options: Any) -> Problem:
        """The problem document that some raw request is answered with."""
        response = self.client.request(method, url, **options)
        assert response.headers["content-type"] == "application/problem+json", response.text
        problem = Problem.model_validate_json(response.content)
        assert problem.status == response.status_code
        assert problem.remedy
        return problem
