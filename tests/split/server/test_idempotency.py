"""Repeated requests get the first answer and have no second effect: final bits are those of a clean run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.split.harness import Servers
from tests.split.wire import Wire, tensor

from torso.errors import RefusedError, StateLostError
from torso.split.server.job import Job


@pytest.fixture
def clean(server: Servers, speak: Callable[..., Wire]) -> str:
    """The fingerprint after two undisturbed steps."""
    wire = speak(server)
    wire.open()
    wire.step(1)
    return wire.step(2)


def test_the_same_steps_give_the_same_bits_in_every_job(wire: Wire, clean: str) -> None:
    wire.open()
    wire.step(1)
    assert wire.step(2) == clean


def test_every_request_sent_thrice_has_the_effect_of_one(wire: Wire, clean: str) -> None:
    for _ in range(3):
        wire.open()
    for step in (1, 2):
        before = wire.fingerprint
        for index in range(3):
            forwards = [wire.forward(step, index) for _ in range(3)]
            backwards = [wire.backward(step, index) for _ in range(3)]
            assert all(torch.equal(forwards[0], other) for other in forwards)
            assert all(torch.equal(backwards[0], other) for other in backwards)
        prepared = [wire.prepare(step) for _ in range(3)]
        assert prepared[0] == prepared[1] == prepared[2]
        committed = [wire.commit(step, before) for _ in range(3)]
        assert len({(answer.step, answer.fingerprint) for answer in committed}) == 1
    assert wire.fingerprint == clean


def test_a_forward_repeated_after_its_backward_or_the_prepare_changes_nothing(wire: Wire, clean: str) -> None:
    wire.open()
    for index in range(3):
        wire.micro_batch(1, index)
        first = wire.forward(1, index)
    wire.prepare(1)
    assert torch.equal(wire.forward(1, 2), first)
    wire.backward(1, 2)
    wire.commit(1)
    assert wire.step(2) == clean


def test_the_first_answer_stands_even_if_a_repeat_brings_other_numbers(wire: Wire, clean: str) -> None:
    wire.open()
    for index in range(3):
        wire.forward(1, index)
        first = wire.backward(1, index)
        assert torch.equal(wire.backward(1, index, gradient=tensor(9, 9)), first)
    wire.prepare(1)
    wire.commit(1)
    assert wire.step(2) == clean


def test_micro_batches_may_come_in_any_order(wire: Wire, clean: str) -> None:
    wire.open()
    for index in (2, 0, 1):
        wire.forward(1, index)
    for index in (1, 2, 0):
        wire.backward(1, index)
    wire.prepare(1)
    wire.commit(1)
    assert wire.step(2) == clean


def test_missing_micro_batches_are_listed(wire: Wire) -> None:
    wire.open()
    wire.micro_batch(1, 1)
    wire.forward(1, 2)  # its gradient never came
    with pytest.raises(StateLostError, match=r"\[0, 2, 3\]") as caught:
        wire.prepare(1, 4)
    assert caught.value.code == "missing_micro_batches"


def test_the_list_of_missing_micro_batches_stays_short(wire: Wire) -> None:
    wire.open()
    with pytest.raises(StateLostError, match="1000000 of 1000000 are missing") as caught:
        wire.prepare(1, 1_000_000)
    assert len(caught.value.message) < 500


def test_missing_micro_batches_can_still_be_sent(wire: Wire, clean: str) -> None:
    wire.open()
    for index in (0, 2):
        wire.micro_batch(1, index)
    with pytest.raises(StateLostError):
        wire.prepare(1)
    wire.micro_batch(1, 1)
    wire.prepare(1)
    wire.commit(1)
    assert wire.step(2) == clean


def test_a_prepared_step_is_not_prepared_again_with_another_number(wire: Wire) -> None:
    wire.open()
    for index in range(3):
        wire.micro_batch(1, index)
    wire.prepare(1, 3)
    for num in (2, 4):
        with pytest.raises((StateLostError, RefusedError)):
            wire.prepare(1, num)


def test_a_commit_needs_its_prepare(wire: Wire) -> None:
    wire.open()
    for index in range(3):
        wire.micro_batch(1, index)
    with pytest.raises(StateLostError, match="not prepared"):
        wire.commit(1)
    assert wire.status().step == 0


def test_a_commit_on_another_state_is_refused(wire: Wire) -> None:
    wire.open()
    wire.micro_batch(1, 0)
    wire.prepare(1, 1)
    with pytest.raises(StateLostError) as caught:
        wire.commit(1, before="0" * 64)
    assert caught.value.code == "fingerprint_mismatch"
    assert wire.status().step == 0


def test_a_skipped_step_counts_and_changes_nothing(wire: Wire) -> None:
    wire.open()
    before = wire.state(0).state
    wire.micro_batch(1, 0)
    wire.prepare(1, 1)
    wire.commit(1, skip=True)
    after = wire.state(1).state
    assert wire.status().step == 1
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_gradients_that_are_not_finite_are_told(wire: Wire) -> None:
    wire.open()
    wire.forward(1, 0)
    wire.backward(1, 0, gradient=torch.full((2, 5, 16), float("nan")))
    assert not wire.prepare(1, 1).finite


def test_a_backward_without_its_forward_asks_to_roll_back(wire: Wire) -> None:
    wire.open()
    with pytest.raises(StateLostError) as caught:
        wire.backward(1, 0)
    assert caught.value.code == "missing_forward"


def test_a_snapshot_is_kept_while_the_job_goes_on(wire: Wire) -> None:
    wire.open()
    wire.step(1)
    first = wire.state(1)
    wire.step(2)
    again = wire.state(1)
    assert again.fingerprint == first.fingerprint
    assert all(torch.equal(first.state[name], again.state[name]) for name in first.state)


def test_a_state_that_was_never_kept_is_lost(wire: Wire) -> None:
    wire.open()
    wire.step(1)
    with pytest.raises(StateLostError) as caught:
        wire.state(0)
    assert caught.value.code == "wrong_step"


def test_two_workers_give_the_bits_of_one(pair_wire: Wire, clean: str) -> None:
    pair_wire.open()
    pair_wire.step(1)
    assert pair_wire.step(2) == clean


def test_a_micro_batch_on_two_workers_counts_once(pair_wire: Wire, clean: str) -> None:
    pair_wire.open()
    for index in range(3):
        pair_wire.micro_batch(1, index, worker=1)
    pair_wire.micro_batch(1, 0, worker=0)
    pair_wire.micro_batch(1, 2, worker=0)
    pair_wire.prepare(1)
    pair_wire.commit(1)
    assert pair_wire.step(2) == clean


def test_a_worker_without_any_micro_batch_takes_part(pair_wire: Wire, clean: str) -> None:
    pair_wire.open()
    for index in range(3):
        pair_wire.micro_batch(1, index, worker=1)
    first = pair_wire.prepare(1)
    assert pair_wire.prepare(1) == first
    pair_wire.commit(1)
    assert pair_wire.status(0).fingerprint == pair_wire.status(1).fingerprint
    assert pair_wire.step(2) == clean


def test_two_jobs_interleaved_give_the_bits_of_each_alone(
    pair: Servers, speak: Callable[..., Wire], clean: str
) -> None:
    a, b = speak(pair), speak(pair)
    a.open()
    b.open()
    for step in (1, 2):
        for index in range(3):
            a.forward(step, index, worker=index % 2)
            b.forward(step, 2 - index, worker=index % 2)
            a.backward(step, index, worker=index % 2)
            b.backward(step, 2 - index, worker=index % 2)
        b.prepare(step)
        a.prepare(step)
        a.commit(step)
        b.commit(step)
    assert a.fingerprint == b.fingerprint == clean


def test_several_openings_at_once_seed_once(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded, seed = [], Job.seed
    monkeypatch.setattr(Job, "seed", lambda request, body: seeded.append(request) or seed(request, body))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: wire.like().open(), range(4)))
    assert len(seeded) == 1
    assert not wire.open().seeded
    assert len({answer.fingerprint for answer in answers}) == 1


def test_the_same_request_at_once_from_many_sides_is_computed_once(wire: Wire, clean: str) -> None:
    wire.open()
    with ThreadPoolExecutor(4) as pool:
        for index in range(3):
            forwards = list(pool.map(lambda _, index=index: wire.forward(1, index), range(4)))
            assert all(torch.equal(forwards[0], other) for other in forwards)
            list(pool.map(lambda _, index=index: wire.backward(1, index), range(4)))
        list(pool.map(lambda _: wire.prepare(1), range(4)))
        before = wire.fingerprint
        list(pool.map(lambda _: wire.commit(1, before), range(4)))
    assert wire.step(2) == clean
