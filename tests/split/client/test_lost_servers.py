"""A server lost in the middle of an evaluation, or while a job is opened, changes nothing but the time it takes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.split.bad_network import GOOD, BadNetwork, behind_bad_network
from tests.split.client.test_remote_inference import PROMPTS, RECIPE, adapted_body, model
from tests.split.harness import CUTS, TRAINING, Quiet, Recipe, Servers, examples, serving

from torso.data.micro_batches import BatchPlan
from torso.errors import StateLostError, TransportError
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.model import InferenceMiddle, LocalMiddle
from torso.evaluation.perplexity import Perplexity, perplexity
from torso.model.stages import Body
from torso.split.client import remote_inference
from torso.split.client.remote_inference import RemoteInference
from torso.split.client.transport import connect
from torso.split.server.leader import Leader
from torso.training.part import TrainablePart

BATCHES = BatchPlan(examples(), 3, TRAINING.global_batch_size, TRAINING.micro_batch_size).step(1).micro_batches
Evaluation = tuple[list[list[int]], Perplexity]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_inference, "REQUEST_PATIENCE_S", 0.3)


@pytest.fixture(scope="module")
def part() -> tuple[Body, TrainablePart]:
    return adapted_body()


@torch.no_grad()
def evaluate(middle: InferenceMiddle) -> Evaluation:
    outputs = decode(model(middle), PROMPTS[:3], 60, DecodingConfig(max_new_tokens=6, batch_size=4))
    outputs += decode(model(middle), PROMPTS[3:], 60, DecodingConfig(decoding="beam", beams=3, max_new_tokens=6))
    return outputs, perplexity(model(middle), BATCHES)


@pytest.fixture(scope="module")
def undisturbed(part: tuple[Body, TrainablePart]) -> Evaluation:
    return evaluate(LocalMiddle(part[0], CUTS))


@contextlib.contextmanager
def remote(urls: list[str], part: TrainablePart, patience_s: float = 10.0) -> Iterator[tuple[RemoteInference, Quiet]]:
    listener = Quiet()
    with contextlib.closing(connect(tuple(urls), 5.0)) as transport:
        state = part.state()
        with RemoteInference(
            RECIPE.spec(), urls, transport, 4, state, patience_s, on_message=listener.on_message
        ) as middle:
            yield middle, listener


@pytest.mark.parametrize("requests", [3, 6, 9, 20])
def test_an_evaluation_goes_on_after_the_servers_restart(
    base: Path, part: tuple[Body, TrainablePart], undisturbed: Evaluation, requests: int
) -> None:
    numbers, running = itertools.count(), list[Servers]()

    def choose() -> str:
        if next(numbers) == requests:  # what the server held is gone, and all its random ids are new
            running.pop().__exit__()
            running.append(Servers(base, 2, port=network.port, listen=network.behind).__enter__())
        return GOOD

    with BadNetwork(2, choose) as network:
        running.append(Servers(base, 2, port=network.port, listen=network.behind).__enter__())
        with remote([running[0].url], part[1]) as (middle, listener):
            assert evaluate(middle) == undisturbed
        running.pop().__exit__()
    assert len(listener.messages) == 1
    assert "lost" in listener.messages[0]


def test_an_evaluation_moves_on_to_the_next_server(
    base: Path, pair: Servers, part: tuple[Body, TrainablePart], undisturbed: Evaluation
) -> None:
    numbers = itertools.count()

    def choose() -> str:
        return GOOD if next(numbers) < 8 else "reset_in_the_request"

    with behind_bad_network(base, 1, choose) as (dying, _), remote([dying.url, pair.url], part[1]) as (middle, told):
        assert evaluate(middle) == undisturbed
    assert len(told.messages) == 1


def test_an_evaluation_outlives_a_server_that_forgets_it_again_and_again(
    pair: Servers, part: tuple[Body, TrainablePart], undisturbed: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, ask = itertools.count(1), RemoteInference.ask

    def forgetful(*arguments: object) -> object:
        if next(numbers) % 10 == 0:
            for worker in pair.workers:
                worker._jobs.clear()
        return ask(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteInference, "ask", forgetful)
    with remote([pair.url], part[1]) as (middle, told):
        assert evaluate(middle) == undisturbed
    assert len(told.messages) > 1


def test_patience_with_a_lost_server_ends(base: Path, part: tuple[Body, TrainablePart]) -> None:
    numbers = itertools.count()
    with (
        behind_bad_network(base, 1, lambda: GOOD if next(numbers) < 4 else "reset_in_the_request") as (dying, _),
        remote([dying.url], part[1], patience_s=1.0) as (middle, _),
    ):
        begun = time.monotonic()
        with pytest.raises(TransportError, match="no body server answers"):
            evaluate(middle)
        assert time.monotonic() - begun < 5.0


def break_group(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """The group is being restarted when the next openings arrive; returns how many have."""
    numbers, right = itertools.count(), Leader.open
    arrived: list[int] = []

    def broken(self: Leader, body: bytes, kind: str) -> object:
        arrived.append(next(numbers))
        if arrived[-1] < times:
            raise StateLostError("a worker of the group does not answer", code="group_failed")
        return right(self, body, kind)

    monkeypatch.setattr(Leader, "open", broken)
    return lambda: len(arrived)


def test_an_opening_that_meets_a_broken_group_waits_for_its_restart(
    tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings = break_group(monkeypatch, times=3)
    Recipe(folder=tmp_path / "run", servers=(pair.url,)).train(1)
    assert openings() == 4


def test_an_opening_that_meets_a_broken_group_goes_to_the_next_server(
    tmp_path: Path, base: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings = break_group(monkeypatch, times=1)
    with serving(base, 1) as other:
        Recipe(folder=tmp_path / "run", servers=(pair.url, other.url)).train(1)
    assert openings() == 2
