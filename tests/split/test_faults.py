"""Whoever is killed at whatever point: the finished run has the bits of the undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.split.harness import Quiet, Recipe
from tests.split.mortal import MortalRecipe, MortalServers, planned

from torso import faults

# connections of killed parties are left unclosed, as they should be
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

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
    """Every point of every client rank that a split comes to."""
    points = [(rank, point) for point in faults.POINTS["client"] if "wave" not in point for rank in (0, 1)]
    return [line("kill", f"client-{rank}", point) for rank, point in points if not (rank and "checkpoint" in point)]


def worker_faults(action: str) -> list[str]:
    """Every point of every worker."""
    points = [(rank, point) for point in faults.POINTS["worker"] for rank in (0, 1)]
    return [
        line(action, f"worker-{rank}", point)
        for rank, point in points
        if not (rank and point.partition(".")[0] in LEADERS_ONLY)
    ]


def check(tmp_path: Path, servers: MortalServers, whole: Recipe, *lines: str, clients: int = 2) -> None:
    """The clients and two workers reach the undisturbed outcome through these faults."""
    run = MortalRecipe(folder=tmp_path / "run", clients=clients, servers=(servers.url,))
    with planned(tmp_path / "faults", lines, servers):
        run.train_through(LAST_STEP)
    assert run.curve() == whole.curve()
    assert run.digest() == whole.digest()


@pytest.mark.parametrize("fault", client_faults())
def test_a_killed_client_rank_changes_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe, fault: str
) -> None:
    check(tmp_path, servers, whole, fault)


@pytest.mark.parametrize("fault", worker_faults("kill"))
def test_a_killed_worker_changes_nothing(tmp_path: Path, servers: MortalServers, whole: Recipe, fault: str) -> None:
    check(tmp_path, servers, whole, fault)


@pytest.mark.parametrize("fault", worker_faults("raise"))
def test_a_surprise_in_a_worker_changes_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe, fault: str
) -> None:
    check(tmp_path, servers, whole, fault)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "point", ["open.after@0", "commit.after@4", "update.after@4", "state.before@4", "state.after@4"]
)
def test_a_rank_that_lags_behind_changes_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe, point: str, rank: int
) -> None:
    check(tmp_path, servers, whole, f"delay:0.7 client-{rank} {point}")


@pytest.mark.parametrize("point", ["open.after@0", "update.after@4"])
def test_the_last_of_many_ranks_may_lag_behind(
    tmp_path: Path, servers: MortalServers, whole: Recipe, point: str
) -> None:
    check(tmp_path, servers, whole, f"delay:1.5 client-4 {point}", clients=5)


@pytest.mark.parametrize("point", [f"{phase}.{moment}@3" for phase in SEEDING for moment in ("before", "after")])
@pytest.mark.parametrize("party", ["worker-0", "worker-1"])
def test_a_second_kill_while_the_first_is_made_good_changes_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe, party: str, point: str
) -> None:
    party = "worker-0" if point.startswith("open") else party
    check(tmp_path, servers, whole, "kill worker-1 backward.after@4", f"kill {party} {point}")


@pytest.mark.parametrize("point", ["state.before@0", "state.after@0"])
def test_a_worker_killed_at_the_first_checkpoint_changes_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe, point: str
) -> None:
    check(tmp_path, servers, whole, f"kill worker-0 {point}")


@pytest.mark.parametrize("point", ["checkpoint.state@0", "checkpoint.manifest@0", "checkpoint.renamed@0"])
def test_a_client_killed_while_it_writes_the_first_checkpoint_changes_nothing(
    tmp_path: Path, servers: MortalServers, whole: Recipe, point: str
) -> None:
    check(tmp_path, servers, whole, f"kill client-0 {point}")


def test_a_worker_killed_while_the_run_is_stopped_leaves_the_last_checkpoint(
    tmp_path: Path, servers: MortalServers, whole: Recipe
) -> None:
    run, listener = MortalRecipe(folder=tmp_path / "run", clients=2, servers=(servers.url,)), Quiet()
    with planned(tmp_path / "faults", ["kill worker-0 state.before@1"], servers):
        run.train(LAST_STEP, listener, stop=lambda: True)
    assert "the last checkpoint" in listener.messages[-1]
    run.train(LAST_STEP)
    assert run.digest() == whole.digest()


def test_kills_all_around_change_nothing(tmp_path: Path, servers: MortalServers, whole: Recipe) -> None:
    check(
        tmp_path,
        servers,
        whole,
        "kill worker-0 commit.after@1",
        "kill client-1 forward.after@2",
        "kill client-0 checkpoint.manifest@3",
        "kill worker-1 prepare.before@3",
        "raise worker-0 backward.after@4",
        "kill client-0 commit.after@5",
    )
