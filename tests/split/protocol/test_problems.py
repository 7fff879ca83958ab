from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from torso.errors import RefusedError, ServerError, StateLostError, TransportError
from torso.split.client.transport import Transport
from torso.split.protocol.messages import Acknowledgement
from torso.split.protocol.problems import PROBLEM, STATUSES, Problem, describe

ROOT = Path(__file__).parents[3]
KINDS: list[tuple[type[ServerError], str]] = [
    (RefusedError, "never"),
    (TransportError, "later"),
    (StateLostError, "roll_back"),
]


def answered(problem: Problem) -> ServerError:
    """What a client makes of the document."""

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(problem.status, content=problem.model_dump_json(), headers={"content-type": PROBLEM})

    with httpx.Client(transport=httpx.MockTransport(handle)) as client, pytest.raises(ServerError) as caught:
        Transport(client).call("GET", "http://server/x", Acknowledgement)
    return caught.value


@pytest.mark.parametrize("code", sorted(STATUSES))
@pytest.mark.parametrize(("kind", "retry"), KINDS)
def test_every_error_crosses_the_wire_whole(kind: type[ServerError], retry: str, code: str) -> None:
    problem = describe(kind("what was wrong", "what to do", code))
    received = answered(problem)
    assert (problem.status, problem.retry) == (STATUSES[code], retry)
    assert problem.type == f"urn:torso:problem:{code}"
    assert type(received) is kind
    assert (received.message, received.remedy, received.code) == ("what was wrong", "what to do", code)


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_a_problem_without_a_remedy_points_to_the_document(code: str) -> None:
    assert describe(RefusedError("wrong", "", code)).remedy == f"See docs/protocol.md#{code}."


@pytest.mark.parametrize(("kind", "retry"), KINDS)
def test_an_error_without_a_code_is_internal(kind: type[ServerError], retry: str) -> None:
    problem = describe(kind("something"))
    assert (problem.code, problem.status, problem.retry) == ("internal", 500, retry)


def test_a_code_of_a_newer_server_still_says_whether_to_retry() -> None:
    problem = Problem(
        type="urn:torso:problem:new", title="New", status=418, detail="a teapot", code="new", retry="roll_back"
    )
    received = answered(problem)
    assert type(received) is StateLostError
    assert received.code == "new"


def test_a_problem_without_a_detail_says_its_title() -> None:
    problem = Problem(type="about:blank", title="Gone", status=410, detail="", code="x", retry="never")
    assert answered(problem).message == "Gone"


def test_statuses_blame_the_request_or_the_server() -> None:
    assert all(400 <= status < 600 for status in STATUSES.values())
    assert [code for code, status in STATUSES.items() if status >= 500] == ["still_working", "group_failed", "internal"]


def test_every_code_that_the_code_raises_has_a_status_and_the_other_way_round() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src/torso").rglob("*.py")]
    sources = [text for text in texts if "STATUSES = {" not in text]
    assert [code for code in STATUSES if not any(f'"{code}"' in text for text in sources)] == ["internal"]
    raised = {code for text in sources for code in re.findall(r'code="([a-z_]+)"', text)}
    assert raised <= STATUSES.keys()
