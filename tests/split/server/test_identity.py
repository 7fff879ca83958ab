"""Who may speak for a job: generation, session, step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.split.wire import Wire, tensor

from torso.errors import RefusedError, StateLostError
from torso.split.protocol.messages import Acknowledgement, GenerationOpenRequest

EVERYTHING: dict[str, Callable[[Wire], object]] = {
    "forward": lambda wire: wire.forward(1, 0),
    "backward": lambda wire: wire.backward(1, 0),
    "prepare": lambda wire: wire.prepare(1, 1),
    "commit": lambda wire: wire.commit(1),
    "state": lambda wire: wire.state(0),
    "delete": lambda wire: wire.delete(),
    "open": lambda wire: wire.open(),
    "open_generation": lambda wire: open_generation(wire),
    "close_generation": lambda wire: close_generation(wire),
}
AFTER_OPEN = sorted(EVERYTHING.keys() - {"open"})


def open_generation(wire: Wire) -> Acknowledgement:
    message = GenerationOpenRequest(**wire.identity, generation_id="0" * 16, batch=2)
    return wire.call("POST", wire.path("/generations"), Acknowledgement, message)


def close_generation(wire: Wire) -> Acknowledgement:
    return wire.call("DELETE", wire.path(f"/generations/{'0' * 16}?{wire.query}"), Acknowledgement)


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_an_older_generation_is_stale_whatever_it_asks(wire: Wire, name: str) -> None:
    wire.generation = 3
    wire.open()
    before = wire.status()
    with pytest.raises(RefusedError, match="stale") as caught:
        EVERYTHING[name](wire.like(generation=2))
    assert caught.value.code == "stale_generation"
    assert wire.status() == before


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_a_copied_run_is_refused_whatever_it_asks(wire: Wire, name: str) -> None:
    wire.open()
    before = wire.status()
    with pytest.raises(RefusedError, match="another session") as caught:
        EVERYTHING[name](wire.like(session="feed" * 4))
    assert caught.value.code == "copied_run"
    assert "copies" in caught.value.remedy
    assert wire.status() == before


@pytest.mark.parametrize("name", AFTER_OPEN)
def test_a_generation_that_was_not_opened_here_must_open_first(wire: Wire, name: str) -> None:
    wire.open()
    if name == "delete":
        EVERYTHING[name](wire.like(generation=9))
        assert wire.status().step == 0
        return
    with pytest.raises(StateLostError) as caught:
        EVERYTHING[name](wire.like(generation=9))
    assert caught.value.code == "unknown_job"


@pytest.mark.parametrize("name", sorted(set(AFTER_OPEN) - {"delete"}))
def test_a_job_that_is_not_held_is_told_to_seed_again(wire: Wire, name: str) -> None:
    with pytest.raises(StateLostError) as caught:
        EVERYTHING[name](wire)
    assert caught.value.code == "unknown_job"


def test_to_delete_a_job_that_is_gone_already_is_no_error(wire: Wire) -> None:
    wire.open()
    wire.delete()
    wire.delete()
    with pytest.raises(StateLostError):
        wire.status()


def test_a_repeated_open_seeds_only_once(wire: Wire) -> None:
    first = wire.open()
    wire.step(1)
    again = wire.open()
    assert (first.seeded, again.seeded) == (True, False)
    assert (again.step, wire.status().step) == (1, 1)
    assert again.fingerprint == wire.status().fingerprint


def test_a_newer_generation_takes_the_job_over_and_the_older_one_is_out(wire: Wire) -> None:
    wire.open()
    wire.micro_batch(1, 0)
    newer = wire.like(generation=2, session="beef" * 4)
    assert newer.open().seeded
    with pytest.raises(RefusedError, match="stale"):
        wire.prepare(1, 1)
    with pytest.raises(StateLostError, match="no worker holds micro-batches"):
        newer.prepare(1, 1)


@pytest.mark.parametrize("step", [0, 2, 3, 10**17])
@pytest.mark.parametrize("name", ["forward", "backward", "prepare", "commit"])
def test_only_the_step_after_the_last_committed_one_is_taken(wire: Wire, name: str, step: int) -> None:
    wire.open()
    requests: dict[str, Callable[[], object]] = {
        "forward": lambda: wire.forward(step, 0, x=tensor(1, 0)),
        "backward": lambda: wire.backward(step, 0, gradient=tensor(1, 0)),
        "prepare": lambda: wire.prepare(step, 1),
        "commit": lambda: wire.commit(step),
    }
    with pytest.raises(StateLostError) as caught:
        requests[name]()
    assert caught.value.code == "wrong_step"


def test_a_run_that_comes_back_from_its_checkpoint_goes_on_with_the_same_bits(wire: Wire) -> None:
    wire.open()
    wire.step(1)
    saved = wire.state(1)
    undisturbed = wire.step(2)
    again = wire.like(generation=2, session="beef" * 4)
    opened = again.open(step=1, state=saved.state)
    assert (opened.step, opened.fingerprint) == (1, saved.fingerprint)
    assert again.step(2) == undisturbed


def test_a_state_that_changed_on_its_way_is_not_taken(wire: Wire) -> None:
    wire.open()
    state = wire.state(0).state
    newer = wire.like(generation=2)
    with pytest.raises(StateLostError) as caught:
        newer.open(step=0, state=state, fingerprint="0" * 64)
    assert caught.value.code == "fingerprint_mismatch"
    assert wire.status().step == 0
    wire.step(1)


@pytest.mark.parametrize("worker", [0, 1])
def test_identity_is_checked_by_every_worker_of_a_group(pair_wire: Wire, worker: int) -> None:
    pair_wire.generation = 2
    pair_wire.open()
    with pytest.raises(RefusedError, match="stale"):
        pair_wire.like(generation=1).forward(1, 0, worker)
    with pytest.raises(RefusedError, match="another session"):
        pair_wire.like(session="feed" * 4).forward(1, 0, worker)


def test_only_the_leader_takes_operations_of_the_group(pair_wire: Wire) -> None:
    pair_wire.open()
    swapped = pair_wire.like(urls=pair_wire.urls[::-1])
    with pytest.raises(RefusedError, match="does not lead"):
        swapped.prepare(1, 1)


def test_all_answers_of_a_process_carry_its_incarnation(pair_wire: Wire) -> None:
    opened = pair_wire.open()
    states = [pair_wire.status(worker) for worker in (0, 1)]
    assert opened.incarnation == states[0].incarnation
    assert states[0].incarnation != states[1].incarnation
    assert states[0].fingerprint == states[1].fingerprint
