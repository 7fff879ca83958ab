"""SIGKILL to real processes, in every phase of the protocol and of a checkpoint: the digest is always the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.cli.jobs import (
    REST,
    SETTINGS,
    background,
    digest,
    have_ended,
    kill,
    ranks_of,
    serving,
    steps,
    torso,
    wait_for,
)

from torso import faults
from torso.parallel.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Words = tuple[str | Path, ...]
PLANS = {
    "seeding": ("kill worker-1 stage.after@0", "kill client-1 open.after@0"),
    "forward": ("kill worker-0 forward.before@7", "kill client-1 forward.after@8"),
    "backward": ("kill worker-1 backward.after@7", "kill client-0 backward.before@8"),
    "prepare": ("kill worker-0 prepare.after@7", "kill client-0 prepare.before@8"),
    "commit": ("kill worker-1 commit.before@7", "kill client-0 commit.after@8"),
    "state fetch": ("kill worker-0 state.before@5", "kill client-0 state.after@10"),
    "checkpoint": ("kill client-0 checkpoint.state@5", "kill client-0 checkpoint.renamed@10"),
}
"""Two kills a phase, one on either side where both take part; a checkpoint is written every 5 steps."""


@pytest.fixture(scope="module")
def settings(tiny_model: Path, tiny_data: str) -> Words:
    """Twelve steps."""
    return ("--model", tiny_model, "--data", tiny_data, *SETTINGS, *REST, "--epochs", "1")


@pytest.fixture(scope="module")
def whole(settings: Words, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the undisturbed run in one process."""
    run = tmp_path_factory.mktemp("whole") / "run"
    torso("train", *settings, "--run-dir", run)
    return digest(run)


def split(run: Path, *servers: str) -> Words:
    """Words that make it a split run of two client ranks."""
    return ("--strategy", "split", "--server", *servers, "--clients", "2", "--run-dir", run)


def to_the_end(client: subprocess.Popen[bytes], log: Path) -> None:
    assert client.wait(400) == 0, log.read_text()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_kills_in_every_phase_do_not_change_the_outcome(
    tiny_model: Path, settings: Words, whole: str, tmp_path: Path, plan: tuple[str, ...]
) -> None:
    port, run, log, folder = free_ports(2), tmp_path / "run", tmp_path / "client.log", tmp_path / "faults"
    faults.write_plan(folder, plan)
    with serving(tiny_model, port, tmp_path / "server.log", plan=folder):
        words = split(run, f"http://127.0.0.1:{port}")
        with background(log, "train", *settings, *words, plan=folder) as client:
            to_the_end(client, log)
    assert faults.hits(folder) == [1, 2]
    assert digest(run) == whole


def test_clients_wait_for_a_server_that_is_killed_whole_and_started_again(
    tiny_model: Path, settings: Words, whole: str, tmp_path: Path
) -> None:
    port, run, log = free_ports(2), tmp_path / "run", tmp_path / "client.log"
    words = ("train", *settings, *split(run, f"http://127.0.0.1:{port}"))
    with serving(tiny_model, port, tmp_path / "server.log") as server, background(log, *words) as client:
        wait_for(lambda: steps(run) >= 3, client, log)
        server.kill()
        server.wait()
        wait_for(lambda: "waiting for the body server" in log.read_text(), client, log)
        with serving(tiny_model, port, tmp_path / "server.log"):
            to_the_end(client, log)
    assert "going back to the last checkpoint" in log.read_text()
    assert digest(run) == whole


def test_clients_move_on_to_the_next_server(tiny_model: Path, settings: Words, whole: str, tmp_path: Path) -> None:
    (one, two), run, log = (free_ports(1), free_ports(1)), tmp_path / "run", tmp_path / "client.log"
    urls = (f"http://127.0.0.1:{one}", f"http://127.0.0.1:{two}")
    with (
        serving(tiny_model, one, tmp_path / "one.log", workers=1) as first,
        serving(tiny_model, two, tmp_path / "two.log", workers=1),
        background(log, "train", *settings, *split(run, *urls)) as client,
    ):
        wait_for(lambda: steps(run) >= 3, client, log)
        kill(first)
        to_the_end(client, log)
    assert digest(run) == whole


def test_after_a_power_loss_serve_and_resume_continue(
    tiny_model: Path, settings: Words, whole: str, tmp_path: Path
) -> None:
    port, run, log = free_ports(2), tmp_path / "run", tmp_path / "client.log"
    words = ("train", *settings, *split(run, f"http://127.0.0.1:{port}"))
    with serving(tiny_model, port, tmp_path / "server.log") as server, background(log, *words) as client:
        wait_for(lambda: steps(run) >= 4, client, log)
        everybody = kill(server, client)
        server.wait()
    assert have_ended(everybody)
    with serving(tiny_model, port, tmp_path / "server.log"):
        torso("resume", run)
    assert digest(run) == whole


def test_a_command_killed_while_it_writes_a_checkpoint_leaves_a_run_that_resumes(
    tiny_model: Path, settings: Words, whole: str, tmp_path: Path
) -> None:
    """The kill is of the rank; the command is killed before it can start it again."""
    port, run, log, folder = free_ports(1), tmp_path / "run", tmp_path / "client.log", tmp_path / "faults"
    faults.write_plan(folder, ["delay:20 client-0 checkpoint.manifest@10"])
    with serving(tiny_model, port, tmp_path / "server.log", workers=1):
        words = split(run, f"http://127.0.0.1:{port}")
        with background(log, "train", *settings, *words, plan=folder) as client:
            wait_for(lambda: faults.hits(folder) == [1], client, log)
            ranks = ranks_of(client)
            client.kill()
            client.wait()
        torso("resume", run, "--clients", "1")
    assert have_ended(ranks)
    assert digest(run) == whole


def test_a_server_that_makes_progress_between_kills_outlives_any_number_of_them(
    tiny_model: Path, settings: Words, whole: str, tmp_path: Path
) -> None:
    """More kills than a group is started again without progress."""
    port, run, log, folder = free_ports(1), tmp_path / "run", tmp_path / "client.log", tmp_path / "faults"
    faults.write_plan(folder, [f"kill worker-0 forward.before@{step}" for step in range(1, 13)])
    every_step = ("--checkpoint-every-steps", "1")
    with serving(tiny_model, port, tmp_path / "server.log", workers=1, plan=folder):
        words = split(run, f"http://127.0.0.1:{port}")
        with background(log, "train", *settings, *words, *every_step, plan=folder) as client:
            to_the_end(client, log)
    assert len(faults.hits(folder)) == 12
    assert digest(run) == whole


def test_a_stop_between_the_server_s_commit_and_the_client_s_update_saves_and_resumes(
    tiny_model: Path, settings: Words, whole: str, tmp_path: Path
) -> None:
    port, run, log, folder = free_ports(1), tmp_path / "run", tmp_path / "client.log", tmp_path / "faults"
    faults.write_plan(folder, ["stop client-1 commit.after@7"])
    with serving(tiny_model, port, tmp_path / "server.log", workers=1):
        words = split(run, f"http://127.0.0.1:{port}")
        with background(log, "train", *settings, *words, plan=folder) as client:
            to_the_end(client, log)
        assert "stopped; the state of step" in log.read_text()
        assert steps(run) < 12
        torso("resume", run)
    assert digest(run) == whole
