"""Answers that are lost after the server acted change no bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.split.client.stand_ins import LosesAnswers, put_between
from tests.split.harness import Quiet, Recipe, Servers

KINDS: list[tuple[str, Callable[[str], bool]]] = [
    ("forward", lambda path: path.endswith("/forward")),
    ("backward", lambda path: path.endswith("/backward")),
    ("prepare", lambda path: path.endswith("/prepare")),
    ("commit", lambda path: path.endswith("/commit")),
    ("open", lambda path: path.endswith("/jobs")),
    ("state", lambda path: path.endswith("/state")),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    whole = Recipe(folder=tmp_path_factory.mktemp("whole") / "run")
    whole.train(3)
    return whole


@pytest.mark.parametrize(("kind", "loses"), KINDS, ids=[kind for kind, _ in KINDS])
def test_one_kind_of_answer_lost_each_time_changes_no_bit(
    tmp_path: Path,
    pair: Servers,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Recipe,
    kind: str,
    loses: Callable[[str], bool],
) -> None:
    network = LosesAnswers(loses)
    put_between(monkeypatch, network)
    listener = Quiet()
    run = Recipe(folder=tmp_path / "run", servers=(pair.url,))
    run.train(3, listener)
    assert network.lost > 0
    assert listener.messages == []
    assert run.curve() == undisturbed.curve()
    assert run.digest() == undisturbed.digest()


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["safetensors", "json"])
def test_every_answer_lost_once_changes_no_bit(
    tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch, undisturbed: Recipe, wire: str
) -> None:
    network = LosesAnswers()
    put_between(monkeypatch, network)
    run = Recipe(folder=tmp_path / "run", servers=(pair.url,), wire=wire)
    run.train(3)
    assert network.lost >= 3 * 10
    assert run.curve() == undisturbed.curve()
    assert run.digest() == undisturbed.digest()


@pytest.mark.parametrize("lost", ["steps/2/prepare", "steps/2/microbatches/1/backward", "steps/3/commit"])
def test_a_step_that_is_given_up_is_rolled_back_to_the_same_bits(
    tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch, undisturbed: Recipe, lost: str
) -> None:
    network = LosesAnswers(lambda path: path.endswith(lost), once_a_path=True)
    put_between(monkeypatch, network)
    monkeypatch.setattr("torso.split.client.remote_body.STEP_PATIENCE_S", 0.0)
    listener = Quiet()
    run = Recipe(folder=tmp_path / "run", servers=(pair.url,))
    run.train(3, listener)
    assert network.lost == 1
    assert any("going back to the last checkpoint" in message for message in listener.messages)
    assert run.curve() == undisturbed.curve()
    assert run.digest() == undisturbed.digest()
