"""What a job holds is bounded and given back, however its client behaves."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import secrets
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tests.split.harness import CONFIG, Servers, serving
from tests.split.wire import JSON, Wire

from torso.errors import RefusedError, ServerError, StateLostError
from torso.split.protocol.messages import Acknowledgement, ForwardAnswer, ForwardRequest, GenerationOpenRequest


@pytest.fixture(scope="module")
def few(base: Path) -> Iterator[Servers]:
    """A server that takes few of everything."""
    with serving(base, 1, max_micro_batches=3, max_decodings=2) as servers:
        yield servers


def test_micro_batches_beyond_the_limit_are_refused_for_good(few: Servers, speak: Callable[..., Wire]) -> None:
    wire = speak(few)
    wire.open()
    for index in (3, 4, 10**17):
        with pytest.raises(RefusedError, match="at most 3") as caught:
            wire.forward(1, index)
        assert caught.value.code == "too_many"
    assert len(few.workers[0].job(wire.job).answers) == 0
    wire.step(1, 3)


def open_decoding(wire: Wire, name: str) -> None:
    message = GenerationOpenRequest(**wire.identity, generation_id=name, batch=1)
    wire.call("POST", wire.path("/generations"), Acknowledgement, message)


def test_decodings_beyond_the_limit_are_refused_for_good(few: Servers, speak: Callable[..., Wire]) -> None:
    wire = speak(few)
    wire.open()
    names = [secrets.token_hex(8) for _ in range(3)]
    for name in names[:2] * 2:  # opening one again is no other one
        open_decoding(wire, name)
    with pytest.raises(RefusedError) as caught:
        open_decoding(wire, names[2])
    assert caught.value.code == "too_many"
    wire.call("DELETE", wire.path(f"/generations/{names[0]}?{wire.query}"), Acknowledgement)
    open_decoding(wire, names[2])


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("name", ["clip_factor", "learning_rate", "divisor"])
def test_a_commit_with_a_number_that_is_not_finite_is_refused_and_changes_nothing(
    wire: Wire, name: str, value: str
) -> None:
    wire.open()
    wire.micro_batch(1, 0)
    wire.prepare(1, 1)
    fields = {"divisor": 1.0, "clip_factor": 1.0, "learning_rate": 0.1, "skip": False}
    text = json.dumps(wire.identity | fields | {"fingerprint_before": wire.fingerprint, name: 77})
    body = text.replace("77", value)
    problem = wire.problem("POST", wire.path("/steps/1/commit"), content=body, headers={"content-type": JSON})
    assert (problem.code, problem.retry) == ("bad_message", "never")
    wire.commit(1)
    assert wire.status().step == 1


def test_a_generation_that_is_superseded_leaves_nothing(pair: Servers, pair_wire: Wire) -> None:
    pair_wire.open()
    for index in range(4):  # in the middle of a step: answers, graphs and gradients are held
        pair_wire.forward(1, index, index % 2)
    pair_wire.backward(1, 0, 0)
    pair_wire.backward(1, 1, 1)
    held = [worker.job(pair_wire.job) for worker in pair.workers]
    assert all(job.answers and job.execution._graphs and job.execution.part.indices for job in held)
    tensors = [y for job in held for _, y in job.execution._graphs.values()]
    tensors += [answer for job in held for answer in job.answers.values()]
    gone = [weakref.ref(thing) for thing in [*held, *tensors]]
    del held, tensors
    pair_wire.generation = 2
    pair_wire.open()
    pair_wire.status(0)  # the computing threads have moved on
    pair_wire.status(1)
    _wait_until(lambda: gc.collect() >= 0 and not [reference for reference in gone if reference() is not None])
    pair_wire.step(1)


def test_a_request_of_a_superseded_generation_cannot_grow_the_new_one(server: Servers, wire: Wire) -> None:
    wire.open()
    wire.forward(1, 0)
    wire.like(generation=2, session="fe" * 8).open()
    with pytest.raises(RefusedError) as caught:
        wire.forward(1, 1)
    assert caught.value.code == "stale_generation"
    assert not server.workers[0].job(wire.job).answers


def test_a_job_that_is_deleted_leaves_nothing(server: Servers, wire: Wire) -> None:
    wire.open()
    wire.forward(1, 0)
    gone = weakref.ref(server.workers[0].job(wire.job))
    wire.delete()
    with pytest.raises(StateLostError):
        wire.status()
    _wait_until(lambda: gc.collect() >= 0 and gone() is None)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


ROWS, TOKENS = 32, 32


def vanish_in_the_middle(servers: Servers, number: int) -> None:
    """A client that opens a job, leaves a step half done, sometimes gets it wrong, and is never heard of again."""
    wire = Wire([f"http://127.0.0.1:{servers.settings.port + rank}" for rank in range(2)])
    wire.open()
    x = torch.randn(ROWS, TOKENS, CONFIG.n_embd)
    for index in range(4):
        message = ForwardRequest(**wire.identity, lengths=[TOKENS] * ROWS, activations=x)
        wire.call("POST", wire.path(f"/steps/1/microbatches/{index}/forward", index % 2), ForwardAnswer, message)
    wire.backward(1, 0, gradient=x)
    if number % 3 == 0:
        with pytest.raises(ServerError):
            wire.backward(1, 2, gradient=x[:, :4])
        with pytest.raises(ServerError):
            wire.like(generation=2).open(layers=[0, 4])
    wire.close()


def _trim() -> None:
    """Give the allocator's free pages back, so that what remains is what is held."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.mark.slow
def test_300_clients_that_vanish_in_the_middle_of_a_step_leave_the_servers_memory_flat(base: Path) -> None:
    process = psutil.Process()
    with serving(base, 2, job_timeout_s=0.4) as servers:
        sizes = []
        for _ in range(5):
            for number in range(75):
                vanish_in_the_middle(servers, number)
            _wait_until(lambda: not any(worker.num_jobs() + len(worker._staged) for worker in servers.workers))
            gc.collect()
            _trim()
            sizes.append(process.memory_info().rss)
    growth = [(size - sizes[0]) / 2**20 for size in sizes]  # the first 75 warm up
    # one forgotten tensor a job would add 40 MiB steadily; the allocator adds and gives back up to half of that
    assert min(growth[-2:]) < 20.0, growth
