from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from torso.split.protocol.codec import DTYPES, JSON, SAFETENSORS, decode
from torso.split.protocol.messages import ForwardRequest
from torso.split.protocol.problems import STATUSES
from torso.split.server.app import create_app
from torso.split.server.config import ServerSettings
from torso.split.server.worker import Worker

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
PROTOCOL = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_tree_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8"))
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    records = [path.name for path in (ROOT / "docs/decisions").glob("0*.md")]
    assert records
    assert all(name in listed for name in records)


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*.toml")), ids=lambda path: path.name)
def test_settings_files_are_toml_and_say_how_to_use_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tomllib.loads(text)
    assert f"--config configs/{path.name}" in text


def anchors(text: str) -> set[str]:
    """As GitHub makes them from headings, and those set by hand."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_a_page_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors(text)


def test_every_place_in_the_protocols_page_that_the_code_names_is_there() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src/torso").rglob("*.py")]
    named = {anchor for text in sources for anchor in re.findall(r"docs/protocol\.md#([a-z-]+)", text)}
    assert named
    assert named <= anchors(PROTOCOL)


def test_every_route_is_in_the_protocols_page() -> None:
    settings = ServerSettings(model="mini", instance="a", secret="s", head_cut=1, tail_cut=2)
    worker = Worker.__new__(Worker)  # routes need no weights
    worker.settings = settings
    routes = [route for route in create_app(worker).routes if isinstance(route, APIRoute)]
    named = {f"{method} {route.path}" for route in routes for method in route.methods or ()}
    assert len(named) > 15
    assert [name for name in sorted(named) if f"`{name}`" not in PROTOCOL] == []


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_every_problem_is_in_the_protocols_page_with_its_status(code: str) -> None:
    assert re.search(rf'<a id="{code}"></a>`{code}` \| {STATUSES[code]} \| (never|later|roll_back) \| ', PROTOCOL)


def test_the_protocols_page_names_no_problem_that_there_is_not() -> None:
    assert set(re.findall(r'<a id="([^"]+)">', PROTOCOL)) == set(STATUSES)


def test_the_protocols_page_names_all_dtypes_and_media_types() -> None:
    assert all(name in PROTOCOL for name in [*DTYPES, JSON, SAFETENSORS])


def test_the_protocols_example_is_a_message() -> None:
    (example,) = re.findall(r'```json\n(\{"generation".*?)```', PROTOCOL, flags=re.DOTALL)
    message = decode(ForwardRequest, example.encode(), JSON)
    assert message.activations[0, 0].tolist() == [0.5, 1.0]
