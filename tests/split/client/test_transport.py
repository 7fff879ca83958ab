"""What is tried again, how, and what is not."""

from __future__ import annotations

import itertools

import httpx
import pytest
from tests.split.harness import Servers

from torso.errors import RefusedError, ServerError, StateLostError, TransportError
from torso.parallel.ports import free_ports
from torso.split.client import transport as module
from torso.split.client.servers import info
from torso.split.client.transport import Transport, connect, is_loopback, persist
from torso.split.protocol.messages import Acknowledgement, JobAnswer
from torso.split.protocol.problems import Problem, describe

URL = "http://server/x"
GOOD = Acknowledgement(incarnation="x").model_dump_json()


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def answering(*responses: httpx.Response | Exception) -> Transport:
    """A transport that gets these answers, the last one for ever."""
    rest = itertools.chain(responses, itertools.repeat(responses[-1]))

    def handle(request: httpx.Request) -> httpx.Response:
        response = next(rest)
        if isinstance(response, Exception):
            raise response
        return response

    return Transport(httpx.Client(transport=httpx.MockTransport(handle)))


def ask(transport: Transport) -> Acknowledgement:
    return transport.call("GET", URL, Acknowledgement)


def good() -> httpx.Response:
    return httpx.Response(200, content=GOOD, headers={"content-type": "application/json"})


def problem(error: ServerError, **headers: str) -> httpx.Response:
    document: Problem = describe(error)
    return httpx.Response(document.status, content=document.model_dump_json(), headers=headers)


FAILURES = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    httpx.ReadTimeout("slow"),
    httpx.ReadError("reset"),
    httpx.WriteError("broken"),
    httpx.RemoteProtocolError("closed"),
    httpx.PoolTimeout("busy"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_failed_connection_is_transient(failure: Exception) -> None:
    with pytest.raises(TransportError, match="failed"):
        ask(answering(failure))


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408, 425])
def test_statuses_that_can_pass_are_transient(status: int) -> None:
    with pytest.raises(TransportError, match=str(status)):
        ask(answering(httpx.Response(status, content="<html>")))


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 405, 407, 411, 413, 414, 422, 431])
def test_statuses_that_cannot_pass_are_permanent(status: int) -> None:
    with pytest.raises(RefusedError, match=str(status)):
        ask(answering(httpx.Response(status, content="<html>", headers={"location": "http://elsewhere/"})))


@pytest.mark.parametrize("content", ["", "<html>", "{}", '{"incarnation": 5}', "null"])
def test_an_unreadable_answer_is_transient(content: str) -> None:
    with pytest.raises(TransportError, match="unreadable"):
        ask(answering(httpx.Response(200, content=content, headers={"content-type": "application/json"})))


def test_an_answer_of_another_kind_is_not_taken() -> None:
    with pytest.raises(TransportError, match="unreadable"):
        answering(good()).call("GET", URL, JobAnswer)


@pytest.mark.parametrize("url", ["http://host:port/", "http://[::1/", "http://[zz]/"])
def test_what_is_no_url_is_permanent(url: str) -> None:
    with httpx.Client(trust_env=False) as client, pytest.raises(RefusedError, match="is no URL"):
        Transport(client).call("GET", url, Acknowledgement)


@pytest.mark.parametrize("error", [RefusedError("no", "", "too_long"), StateLostError("gone", "", "unknown_job")])
def test_permanent_errors_and_lost_state_are_told_at_once(clock: Clock, error: ServerError) -> None:
    transport = answering(problem(error), good())
    with pytest.raises(type(error)) as caught:
        persist(lambda: ask(transport), 600.0)
    assert caught.value.code == error.code
    assert clock.pauses == []


def test_transient_errors_are_tried_again_until_they_pass(clock: Clock) -> None:
    transport = answering(httpx.ConnectError("refused"), httpx.Response(502), problem(TransportError("wait")), good())
    assert persist(lambda: ask(transport), 600.0).incarnation == "x"
    assert len(clock.pauses) == 3


def test_pauses_grow_up_to_a_limit_and_are_not_in_step(clock: Clock) -> None:
    transport = answering(httpx.ConnectError("refused"))
    with pytest.raises(TransportError):
        persist(lambda: ask(transport), 60.0)
    assert clock.now <= 60.0
    for number, pause in enumerate(clock.pauses):
        planned = min(0.1 * 2**number, 5.0)
        assert 0.8 * planned <= pause <= 1.2 * planned
    assert len(set(clock.pauses)) == len(clock.pauses)


def test_patience_ends(clock: Clock) -> None:
    with pytest.raises(TransportError, match="refused"):
        persist(lambda: ask(answering(httpx.ConnectError("refused"))), 3.0)
    assert 1.0 < clock.now <= 3.0


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_names_a_pause_gets_it(clock: Clock, status: int) -> None:
    busy = httpx.Response(status, headers={"Retry-After": "7"})
    transport = answering(busy, good())
    persist(lambda: ask(transport), 600.0)
    assert clock.pauses == [7.0]


def test_a_problem_document_may_name_a_pause_too(clock: Clock) -> None:
    transport = answering(problem(TransportError("wait"), **{"Retry-After": "4"}), good())
    persist(lambda: ask(transport), 600.0)
    assert clock.pauses == [4.0]


def test_a_pause_beyond_the_patience_is_not_waited_for(clock: Clock) -> None:
    transport = answering(httpx.Response(503, headers={"Retry-After": "3600"}), good())
    with pytest.raises(TransportError):
        persist(lambda: ask(transport), 3.0)
    assert clock.pauses == []


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "soon", "", "1e9"])
def test_other_forms_of_a_pause_leave_it_to_the_client(clock: Clock, value: str) -> None:
    transport = answering(httpx.Response(503, headers={"Retry-After": value}), good())
    persist(lambda: ask(transport), 600.0)
    assert clock.pauses[0] < 0.2


def test_the_user_is_told_once_that_a_server_is_waited_for(clock: Clock) -> None:
    told: list[str] = []
    with pytest.raises(TransportError):
        persist(lambda: ask(answering(httpx.ConnectError("refused"))), 60.0, told.append)
    assert len(told) == 1
    assert "waiting" in told[0]


def test_bytes_are_counted_both_ways() -> None:
    transport = answering(good())
    ask(transport)
    transport.call("POST", URL, Acknowledgement, Acknowledgement(incarnation="abc"))
    assert transport.sent == len(Acknowledgement(incarnation="abc").model_dump_json())
    assert transport.received == 2 * len(GOOD)


def test_nobody_there_is_transient() -> None:
    url = f"http://127.0.0.1:{free_ports(1)}"
    transport = connect((url,), 5.0)
    with pytest.raises(TransportError):
        info(transport, url)
    transport.close()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_proxies_of_the_environment_are_not_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, server: Servers, name: str, host: str
) -> None:
    monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    url = f"http://{host}:{server.settings.port}"
    transport = connect((url,), 5.0)
    assert info(transport, url).instance == "feedc0de"
    transport.close()


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8700", True),
        ("http://127.3.2.1", True),
        ("http://localhost:1/x", True),
        ("http://[::1]:8700", True),
        ("http://gpu-host:8700", False),
        ("http://10.0.0.1", False),
        ("http://localhost.example.org", False),
    ],
)
def test_this_machine_is_known_by_its_names(url: str, local: bool) -> None:
    assert is_loopback(url) == local
