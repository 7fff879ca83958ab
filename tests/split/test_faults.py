"""Whoever is killed at whatever point: the finished run has the bits of the undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.split.harness import Recipe
from tests.split.mortal import MortalRecipe, MortalServers, planned

from torso import faults

pytestmark = pytest.mark.slow

LAST_STEP = 5
AT = 4
"""Where it happens: a checkpoint is written after this step, the one before stands at step 3."""
SEEDING = ("open", "stage", "activate")
LEADERS_ONLY = ("open", "state")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The undisturbed run, without a wire."""
    recipe = Recipe(folder=tmp_path_factory.mktemp("whole") / "run")
    recipe.train(LAST_STEP)
    return recipe


@pytest.fixture(scope="module")
def servers(base: Path) -> Iterator[MortalServers]:
    """Two workers."""
    with MortalServers(base, 2) as servers:
        yield servers


def line(action: str, party: str, point: str) -> str:
    """The fault at this point: of step 4, or of the first seeding."""
    if point.startswith("delete"):
        return f"{action} {party} {point}"
    return f"{action} {party} {point}@{0 if point.partition('.')[0] in SEEDING else AT}"


def client_faults() -> list[str]:
    """Every point of every client rank."""
    points = [(rank, point) for point in faults.POINTS["client"] for rank in (0, 1)]
    return [line("kill", f"client-{rank}", point) for rank, point in points if not (rank and "checkpoint" in point)]


def worker_faults(action: str) -> list[str]:
    """Every point of every worker."""
    points = [(rank, point) for point in faults.POINTS["worker"] for rank in (0, 1)]
    return [
        line(action, f"worker-{rank}", point)
        for rank, point in points
        if not (rank and point.partition(".")[0] in LEADERS_ONLY)
    ]


def check(tmp_path: Path, servers: MortalServers, whole: Recipe, *lines: str) -> None:
    """Two clients and two workers reach the undisturbed outcome through these faults."""
    run = MortalRecipe(folder=tmp_path / "run", clients=2, servers=(servers.url,))
    with planned(tmp_path / "faults", lines, servers):
        run.train_through(LAST_STEP)
    assert run.curve() == whole.curve()
    assert run.digest() == whole.digest()


@pytest.mark.parametrize("fault", client_faults())
def test_a_killed_client_rank_changes_nothing(tmp_path: Path, servers: MortalServers, whole: Recipe, fault: str) -> None:
    check(tmp_path, servers, whole, fault)


@pytest.mark.parametrize("fault", worker_faults("kill"))
def test_a_killed_worker_changes_nothing(tmp_path: Path, servers: MortalServers, whole: Recipe, fault: str) -> None:
    check(tmp_path, servers, whole, fault)
