"""Requests that come late or twice, among them those of openings before a roll-back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.split.harness import Recipe
from tests.split.mortal import MortalRecipe, MortalServers, planned

from torso.parallel.group import Group
from torso.split.client.remote_body import RemoteBody
from torso.split.client.transport import Transport
from torso.split.protocol.problems import Problem
from torso.training.run_directory import RunDirectory

# connections of killed parties are left unclosed, as they should be
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
LAST_STEP = 5


class Echo(httpx.HTTPTransport):
    """Sends every request twice, and after each commit all that were ever sent, once more."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[httpx.Request] = []
        self.refusals: list[str] = []
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The first answer is lost."""
        self._send(request).close()
        response = self._send(request)
        if request.url.path.endswith("/commit"):
            self._repeat_what_is_old()
        if request.method == "POST":
            with self._lock:
                self.sent.append(request)
        return response

    def _send(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.read()
        return response

    def _repeat_what_is_old(self) -> None:
        with self._lock:
            old = list(self.sent)
        for request in old:
            response = self._send(request)
            if response.status_code >= 400:
                self.refusals.append(Problem.model_validate_json(response.content).code)


@dataclass(frozen=True, kw_only=True)
class EchoRecipe(MortalRecipe):
    """A run on a network that repeats everything."""

    echo: Echo = field(default_factory=Echo)

    def _remote(self, run: RunDirectory, group: Group) -> RemoteBody:
        return RemoteBody(
            job=run.state.job,
            spec=self.spec(),
            servers=self.servers,
            transport=Transport(httpx.Client(transport=self.echo, timeout=20.0)),
            group=group,
            raise_generation=run.raise_generation,
            patience_s=20.0,
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The undisturbed run, without a wire."""
    recipe = Recipe(folder=tmp_path_factory.mktemp("whole") / "run")
    recipe.train(LAST_STEP)
    return recipe


@pytest.fixture
def servers(base: Path) -> Iterator[MortalServers]:
    """Two workers."""
    with MortalServers(base, 2) as servers:
        yield servers


def test_requests_repeated_at_once_and_later_change_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe
) -> None:
    run = EchoRecipe(folder=tmp_path / "run", servers=(servers.url,))
    run.train_through(LAST_STEP)
    assert run.curve() == whole.curve()
    assert run.digest() == whole.digest()
    assert set(run.echo.refusals) == {"wrong_step"}


@pytest.mark.parametrize("fault", ["kill worker-1 prepare.before@4", "raise client-0 commit.after@4"])
def test_requests_from_before_a_roll_back_are_refused_as_stale(
    tmp_path: Path, servers: MortalServers, whole: Recipe, fault: str
) -> None:
    run = EchoRecipe(folder=tmp_path / "run", servers=(servers.url,))
    with planned(tmp_path / "faults", [fault], servers):
        run.train_through(LAST_STEP)
    assert run.curve() == whole.curve()
    assert run.digest() == whole.digest()
    assert "stale_generation" in run.echo.refusals
