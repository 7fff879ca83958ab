"""What cannot heal stops at once: every request is sent once, and nothing is rolled back."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.split.client.stand_ins import Wiretap, over
from tests.split.harness import Quiet, Recipe, Servers, serving

from torso.errors import PeerError, RefusedError, ServerMismatchError, TorsoError
from torso.split.client.job import JobSpec
from torso.split.protocol.messages import OpenRequest


class Refuses(Wiretap):
    """Something in between does not allow some requests."""

    def __init__(self, path: str, status: int) -> None:
        super().__init__()
        self._path, self._status = path, status

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See class."""
        response = super().handle_request(request)
        return httpx.Response(self._status, content="not here") if request.url.path.endswith(self._path) else response


def fails(run: Recipe, network: Wiretap, match: str, *, kinds: tuple[type[TorsoError], ...] = (RefusedError,)) -> None:
    """Train through `network` and see it end, fast, without a second attempt at anything."""
    listener, begun = Quiet(), time.monotonic()
    with pytest.raises(kinds, match=match):
        dataclasses.replace(run, connect=lambda servers, timeout, kind: over(network, kind)).train(3, listener)
    assert time.monotonic() - begun < 20.0
    assert listener.messages == []
    repeated = [key for key, times in Counter((s.method, s.path, s.body) for s in network.sent).items() if times > 1]
    assert [path for _, path, _ in repeated if not path.endswith("/info")] == []


def count(network: Wiretap, end: str) -> int:
    return sum(sent.path.endswith(end) for sent in network.sent)


@pytest.mark.parametrize("clients", [1, 2])
def test_a_request_that_is_too_large(tmp_path: Path, base: Path, clients: int) -> None:
    with serving(base, 1, max_tokens=5) as servers:
        network = Wiretap()
        run = Recipe(folder=tmp_path / "run", servers=(servers.url,), clients=clients)
        fails(run, network, "at most 5 are taken|another rank gave up", kinds=(RefusedError, PeerError))
    assert count(network, "/v1/jobs") == 1
    assert 0 < count(network, "/forward") <= 4  # what was in flight
    assert count(network, "/backward") == 0


def test_too_many_micro_batches(tmp_path: Path, base: Path) -> None:
    with serving(base, 1, max_micro_batches=2) as servers:
        network = Wiretap()
        fails(Recipe(folder=tmp_path / "run", servers=(servers.url,)), network, "at most 2 are taken")
    assert count(network, "microbatches/2/forward") == 1
    assert count(network, "/prepare") == 0


def test_too_long_a_sequence(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(base, 1) as servers:
        config = dataclasses.replace(servers.workers[0].base.config, n_positions=4)
        monkeypatch.setattr(servers.workers[0].base, "config", config)
        network = Wiretap()
        fails(Recipe(folder=tmp_path / "run", servers=(servers.url,)), network, "the model has 4 positions")
    assert 0 < count(network, "/forward") <= 4


WRONG: list[tuple[str, dict[str, object]]] = [
    ("other base weights", {"base_fingerprint": "0" * 64}),
    ("computes otherwise", {"arithmetic": {"torch": "0.4"}}),
]


@pytest.mark.parametrize(("match", "changes"), WRONG, ids=[match for match, _ in WRONG])
def test_a_server_that_holds_something_else(
    tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch, match: str, changes: dict[str, object]
) -> None:
    right: Callable[[Recipe], JobSpec] = Recipe.spec
    monkeypatch.setattr(Recipe, "spec", lambda self: dataclasses.replace(right(self), **changes))  # type: ignore[arg-type]
    network = Wiretap()
    fails(Recipe(folder=tmp_path / "run", servers=(pair.url,)), network, match, kinds=(ServerMismatchError,))
    assert [sent.path for sent in network.sent] == ["/v1/info"]


def test_weights_that_only_the_server_sees_to_be_wrong(
    tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobSpec, "check", lambda *_: None)
    right: Callable[[Recipe], JobSpec] = Recipe.spec
    monkeypatch.setattr(Recipe, "spec", lambda self: dataclasses.replace(right(self), base_fingerprint="0" * 64))
    network = Wiretap()
    fails(Recipe(folder=tmp_path / "run", servers=(pair.url,)), network, "base weights are others")
    assert [sent.path for sent in network.sent] == ["/v1/info", "/v1/jobs"]


def test_an_adapter_that_does_not_fit(tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    right = JobSpec.open_request

    def with_other_targets(*arguments: Any) -> OpenRequest:
        request = right(*arguments)
        return request.model_copy(update={"adapter": request.adapter.model_copy(update={"targets": ["attn.other"]})})

    monkeypatch.setattr(JobSpec, "open_request", with_other_targets)
    network = Wiretap()
    fails(Recipe(folder=tmp_path / "run", servers=(pair.url,)), network, "attn.other")
    assert count(network, "/v1/jobs") == 1


@pytest.mark.parametrize("status", [401, 403, 407])
@pytest.mark.parametrize("path", ["/v1/info", "/v1/jobs", "/forward", "/backward", "/prepare", "/commit", "/state"])
def test_what_is_not_allowed(tmp_path: Path, pair: Servers, path: str, status: int) -> None:
    network = Refuses(path, status)
    fails(Recipe(folder=tmp_path / "run", servers=(pair.url,)), network, f"HTTP {status}")
    assert 0 < count(network, path) <= 4


def test_a_run_that_somebody_resumed(tmp_path: Path, pair: Servers) -> None:
    class Resumed(Wiretap):
        """Before the first prepare somebody else opens the job with the next generation."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/prepare"):
                for worker in pair.workers:
                    job = worker._jobs[request.url.path.split("/")[3]]
                    job.request = job.request.model_copy(update={"generation": 9})
            return super().handle_request(request)

    network = Resumed()
    fails(Recipe(folder=tmp_path / "run", servers=(pair.url,)), network, "is stale")
    assert count(network, "/prepare") == 1
