"""A worker that computes for long is told from one that hangs, and from one that is gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.split.bad_network import GOOD, SILENCE, behind_bad_network
from tests.split.harness import Quiet, Recipe, serving
from tests.split.wire import Wire
from torch import Tensor

from torso.errors import ServerError, StateLostError, TransportError
from torso.split.client.transport import persist
from torso.split.server.job import Job


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    whole = Recipe(folder=tmp_path_factory.mktemp("whole") / "run")
    whole.train(3)
    return whole


def slow(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> list[Any]:
    """Let one of a job's methods take long; returns what each call was given."""
    calls: list[Any] = []
    quick: Callable[..., Any] = getattr(Job, name)

    def slowly(self: Job, *arguments: Any) -> Any:
        calls.append(arguments)
        time.sleep(seconds)
        return quick(self, *arguments)

    monkeypatch.setattr(Job, name, slowly)
    return calls


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connections are made, and nothing is ever answered: a frozen process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_late_answer_is_announced_and_computed_once(
    base: Path, speak: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = slow(monkeypatch, "forward", 0.5)
    with serving(base, 1, answer_within_s=0.1) as servers:
        wire = speak(servers)
        wire.open()
        with pytest.raises(TransportError) as caught:
            wire.forward(1, 0)
        assert caught.value.code == "still_working"
        assert torch.isfinite(persist(lambda: wire.forward(1, 0), 0.3)).all()  # less patience than it takes
    assert len(calls) == 1


def test_an_answer_that_came_while_nobody_asked_is_kept_for_a_while(
    base: Path, speak: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = slow(monkeypatch, "state", 1.1)
    with serving(base, 1, answer_within_s=1.0) as servers:
        wire = speak(servers)
        wire.open()
        with pytest.raises(TransportError):
            wire.state(0)
        time.sleep(0.3)
        assert wire.state(0).step == 0
        assert len(calls) == 1
        assert wire.client.get(f"{servers.url}/v1/info").json()["load"] == 0


@pytest.mark.slow
def test_a_slow_worker_is_waited_for_with_less_patience_than_it_needs(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Recipe
) -> None:
    for name in ("forward", "commit"):
        slow(monkeypatch, name, 1.2)
    monkeypatch.setattr("torso.split.client.remote_body.STEP_PATIENCE_S", 0.3)
    listener = Quiet()
    with serving(base, 2, answer_within_s=0.1) as servers:
        run = Recipe(folder=tmp_path / "run", servers=(servers.url,), read_timeout_s=1.0)
        run.train(3, listener)
        assert servers.given_up == []
    assert listener.messages == []
    assert run.digest() == undisturbed.digest()


def test_waiting_for_a_turn_is_not_hanging(
    base: Path, speak: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, "forward", 0.3)
    with serving(base, 1, answer_within_s=0.05, hang_timeout_s=2.2) as servers:
        wire = speak(servers)
        wire.open()
        threads = [threading.Thread(target=_forward, args=(wire, index)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(servers.workers[0].job(wire.job).answers) == 8
        assert servers.given_up == []


def _forward(wire: Wire, index: int) -> Tensor:
    return persist(lambda: wire.forward(1, index), 10.0)


def test_a_computation_that_hangs_is_given_up_after_the_stated_time(
    base: Path, speak: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(Job, "forward", lambda *_: release.wait(20))
    with serving(base, 1, answer_within_s=0.1, hang_timeout_s=0.5) as servers:
        wire = speak(servers)
        wire.open()
        begun = time.monotonic()
        with pytest.raises(StateLostError, match="hangs") as caught:
            persist(lambda: wire.forward(1, 0), 5.0)
        assert caught.value.code == "group_failed"
        assert 0.4 < time.monotonic() - begun < 3.0
        _wait_until(lambda: servers.given_up[:1] == [0])
        release.set()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_freezes_in_the_middle_is_left_for_the_next_one(
    tmp_path: Path, base: Path, undisturbed: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torso.split.client.remote_body.STEP_PATIENCE_S", 0.3)
    faults = iter([GOOD] * 20)
    listener = Quiet()
    with behind_bad_network(base, 1, lambda: next(faults, SILENCE)) as (frozen, _), serving(base, 2) as other:
        run = Recipe(folder=tmp_path / "run", servers=(frozen.url, other.url), read_timeout_s=1.0)
        run.train(3, listener)
        assert sum(worker.num_jobs() for worker in frozen.workers) == 1
    assert any("timed out" in message for message in listener.messages)
    assert run.curve() == undisturbed.curve()
    assert run.digest() == undisturbed.digest()


def test_a_server_that_says_nothing_is_gone_after_the_read_timeout(tmp_path: Path, silent_port: int) -> None:
    run = Recipe(
        folder=tmp_path / "run", servers=(f"http://127.0.0.1:{silent_port}",), read_timeout_s=0.2, patience_s=1.0
    )
    begun = time.monotonic()
    with pytest.raises(ServerError, match="no body server answers"):
        run.train(1)
    assert time.monotonic() - begun < 5.0
