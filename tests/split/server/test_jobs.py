"""Jobs beside each other, their memory, and what a server tells of itself."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.split.harness import CONFIG, CUTS, Servers, serving
from tests.split.wire import JSON, LENGTHS, Wire, tensor

import torso
from torso.errors import ConfigError, RefusedError, StateLostError
from torso.parallel.ports import local_url
from torso.split.protocol.codec import SAFETENSORS, decode, encode
from torso.split.protocol.messages import ForwardAnswer, ForwardRequest, GenerationOpenRequest, InfoAnswer, StateAnswer
from torso.split.server.config import ServerSettings


def test_one_job_cannot_read_anothers_state(server: Servers, speak: Callable[..., Wire]) -> None:
    mine, theirs = speak(server), speak(server)
    mine.open()
    theirs.open()
    with pytest.raises(RefusedError) as caught:
        mine.like(job=theirs.job).state(0)
    assert caught.value.code == "copied_run"
    with pytest.raises(RefusedError):
        mine.like(job=theirs.job).delete()
    theirs.step(1)


def test_a_state_is_not_given_without_an_identity(wire: Wire) -> None:
    wire.open()
    assert wire.problem("GET", wire.path("/state?step=0")).code == "bad_message"
    guess = wire.path("/state?step=0&generation=1&session=00000000")
    assert wire.problem("GET", guess).code == "copied_run"


def test_jobs_cannot_be_listed(wire: Wire) -> None:
    wire.open()
    assert wire.problem("GET", f"{wire.urls[0]}/v1/jobs").code == "not_found"
    for page in ("/metrics", "/v1/info", "/healthz", "/readyz"):
        assert wire.job not in wire.client.get(wire.urls[0] + page).text


def test_a_status_tells_no_more_than_where_a_job_stands(wire: Wire) -> None:
    wire.open()
    assert wire.client.get(wire.path()).json().keys() == {"incarnation", "step", "fingerprint"}


def test_another_jobs_decoding_is_out_of_reach(server: Servers, speak: Callable[..., Wire]) -> None:
    mine, theirs = speak(server), speak(server)
    mine.open()
    theirs.open()
    message = GenerationOpenRequest(**theirs.identity, generation_id="ab" * 8, batch=2)
    body, kind = encode(message)
    theirs.client.post(theirs.path("/generations"), content=body, headers={"content-type": kind})
    held = server.workers[0].job(theirs.job)
    mine.client.delete(theirs.path(f"/generations/{'ab' * 8}?{mine.query}"))
    mine.client.delete(mine.path(f"/generations/{'ab' * 8}?{mine.query}"))
    assert list(held.generations) == ["ab" * 8]
    theirs.client.delete(theirs.path(f"/generations/{'ab' * 8}?{theirs.query}"))
    assert not held.generations


def test_an_idle_job_gives_its_memory_back_and_can_be_seeded_again(base: Path, speak: Callable[..., Wire]) -> None:
    with serving(base, 1, job_timeout_s=1.0) as servers:
        wire = speak(servers)
        wire.open()
        wire.step(1)
        saved = wire.state(1).state
        _wait_until(lambda: servers.workers[0].num_jobs() == 0)
        with pytest.raises(StateLostError) as caught:
            wire.forward(2, 0)
        assert caught.value.code == "unknown_job"
        assert wire.open(step=1, state=saved).seeded
        wire.step(2)


def test_a_job_that_was_staged_but_never_opened_is_freed(base: Path, speak: Callable[..., Wire]) -> None:
    with serving(base, 2) as servers:
        servers.workers[1].base.fingerprint = "other"
        wire = speak(servers)
        with pytest.raises(RefusedError):
            wire.open(base_fingerprint=servers.workers[0].base.fingerprint)
        assert not servers.workers[0]._staged


def test_a_job_that_is_heard_from_is_kept(base: Path, speak: Callable[..., Wire]) -> None:
    with serving(base, 1, job_timeout_s=0.6) as servers:
        wire = speak(servers)
        wire.open()
        for _ in range(8):
            wire.status()
            time.sleep(0.1)
        wire.step(1)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_committed_step_leaves_nothing_behind(wire: Wire, server: Servers) -> None:
    wire.open()
    wire.step(1)
    job = server.workers[0].job(wire.job)
    assert not job.answers
    assert not job.execution._graphs
    assert not job.execution.part.indices


def test_no_thread_outlives_its_server(base: Path, speak: Callable[..., Wire]) -> None:
    before = set(threading.enumerate())
    with serving(base, 2) as servers:
        wire = speak(servers)
        wire.open()
        wire.step(1)
    _wait_until(lambda: not {t for t in set(threading.enumerate()) - before if not t.name.startswith("asyncio")})


def test_a_server_listens_to_this_machine_only_unless_told_otherwise() -> None:
    settings = ServerSettings(model="mini", instance="a", secret="s", head_cut=1, tail_cut=2)
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value"), [("threads", 0), ("job_timeout_s", 0.0), ("hang_timeout_s", math.inf), ("max_body_bytes", -1)]
)
def test_settings_that_no_server_can_work_with_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        ServerSettings(model="mini", instance="a", secret="s", head_cut=1, tail_cut=2, **{name: value})  # type: ignore[arg-type]


def test_workers_find_each_other_at_an_ipv6_address() -> None:
    assert local_url("::", 8701) == local_url("::1", 8701) == "http://[::1]:8701"
    assert local_url("0.0.0.0", 8701) == "http://127.0.0.1:8701"


@pytest.mark.parametrize("page", ["healthz", "readyz"])
def test_health_says_which_launch_answers(wire: Wire, page: str) -> None:
    answer = wire.client.get(f"{wire.urls[0]}/{page}")
    assert answer.status_code == 200
    assert answer.json()["instance"] == "feedc0de"


def test_info_says_what_is_served(pair_wire: Wire, pair: Servers) -> None:
    info = pair_wire.call("GET", f"{pair.url}/v1/info", InfoAnswer)
    assert info.version == torso.__version__
    assert (info.n_layer, info.n_embd, info.n_positions) == (CONFIG.n_layer, CONFIG.n_embd, CONFIG.n_positions)
    assert info.layers == [CUTS.head_cut, CUTS.tail_cut]
    assert [worker.port for worker in info.workers] == [pair.settings.port, pair.settings.port + 1]
    assert info.arithmetic.keys() >= {"torch", "device", "threads", "attention"}
    assert (info.limits.max_body_bytes, info.limits.max_tokens) == (1 << 30, 1 << 17)
    assert (info.limits.max_micro_batches, info.limits.max_decodings) == (1024, 64)


def test_metrics_are_prometheus_text(wire: Wire) -> None:
    wire.open()
    wire.step(1)
    answer = wire.client.get(f"{wire.urls[0]}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'torso_requests_total{kind="forward"}' in answer.text
    names = {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}
    assert names == {"torso_jobs", "torso_load", "torso_memory_peak_bytes", "torso_requests_total"}
    assert all(float(line.rsplit(" ", 1)[1]) >= 0 for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
def test_the_answer_comes_in_the_form_that_is_asked_for(wire: Wire, media_type: str) -> None:
    wire.open()
    url = wire.path(f"/state?step=0&{wire.query}")
    assert wire.client.get(url, headers={"accept": media_type}).headers["content-type"] == media_type


def test_a_plain_json_client_gets_the_same_bits(wire: Wire) -> None:
    wire.open()
    binary = wire.forward(1, 0)
    message = ForwardRequest(**wire.identity, lengths=LENGTHS, activations=tensor(1, 0))
    body, kind = encode(message, JSON)
    answer = wire.client.post(
        wire.path("/steps/1/microbatches/0/forward"), content=body, headers={"content-type": kind, "accept": JSON}
    )
    plain = decode(ForwardAnswer, answer.content, JSON).activations
    assert torch.equal(plain, binary)


def test_a_slow_computation_does_not_silence_the_health_page(wire: Wire, server: Servers) -> None:
    wire.open()
    job = server.workers[0].job(wire.job)
    with job.lock:  # the compute thread waits here, as if it were busy
        thread = threading.Thread(target=lambda: wire.forward(1, 0))
        thread.start()
        _wait_until(lambda: "torso_load 1" in wire.client.get(f"{wire.urls[0]}/metrics").text)
        assert wire.client.get(f"{wire.urls[0]}/healthz").status_code == 200
    thread.join()


def test_a_state_can_be_fetched_while_another_job_is_open(server: Servers, speak: Callable[..., Wire]) -> None:
    a, b = speak(server), speak(server)
    a.open()
    b.open()
    b.step(1)
    answers: list[StateAnswer] = [a.state(0), b.state(1)]
    assert [answer.step for answer in answers] == [0, 1]
    assert answers[0].fingerprint != answers[1].fingerprint
