"""The main job as real processes: serve, train, kill, stop, resume. The digest is always the unsplit run's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.jobs import REST, SETTINGS, background, digest, have_ended, ranks_of, serving, steps, torso, wait_for

from torso.parallel.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def settings(tiny_model: Path, tiny_data: str) -> tuple[str | Path, ...]:
    return ("--model", tiny_model, "--data", tiny_data, *SETTINGS, *REST)


@pytest.fixture(scope="module")
def whole(settings: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of two epochs in one process."""
    run = tmp_path_factory.mktemp("whole") / "run"
    torso("train", *settings, "--epochs", "2", "--run-dir", run)
    return digest(run)


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """Two workers as `torso serve` starts them."""
    port, log = free_ports(2), tmp_path / "server.log"
    with serving(tiny_model, port, log) as process:
        yield f"http://127.0.0.1:{port}", process, log
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


def test_kills_on_both_sides_do_not_change_the_outcome(
    settings: tuple[str | Path, ...], whole: str, server: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    (url, serving, _), run, log = server, tmp_path / "run", tmp_path / "client.log"
    split = ("--strategy", "split", "--server", url, "--clients", "2", "--epochs", "2", "--run-dir", run)
    with background(log, "train", *settings, *split) as client:
        wait_for(lambda: steps(run) >= 2, client, log)
        os.kill(ranks_of(client)[1], signal.SIGKILL)
        wait_for(lambda: "restarting the group" in log.read_text(), client, log)
        wait_for(lambda: steps(run) >= 4, client, log)
        os.kill(ranks_of(serving)[0], signal.SIGKILL)
        assert client.wait(200) == 0, log.read_text()
    assert digest(run) == whole


def test_a_run_stopped_by_ctrl_c_resumes_to_the_same_outcome(
    settings: tuple[str | Path, ...], whole: str, server: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    (url, _, _), run, log = server, tmp_path / "run", tmp_path / "client.log"
    split = ("--strategy", "split", "--server", url, "--clients", "2", "--epochs", "1", "--run-dir", run)
    with background(log, "train", *settings, *split) as client:
        wait_for(lambda: steps(run) >= 2, client, log)
        client.send_signal(signal.SIGINT)
        assert client.wait(90) == 0, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert last.startswith("torso: ")
    assert "torso resume" in last
    assert "Traceback" not in log.read_text()
    torso("resume", run, "--epochs", "1", "--clients", "1")
    assert digest(run) == whole


def test_a_killed_command_leaves_no_rank_and_its_run_resumes(
    settings: tuple[str | Path, ...], whole: str, server: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    (url, _, _), run, log = server, tmp_path / "run", tmp_path / "client.log"
    split = ("--strategy", "split", "--server", url, "--clients", "2", "--epochs", "2", "--run-dir", run)
    with background(log, "train", *settings, *split) as client:
        wait_for(lambda: steps(run) >= 2, client, log)
        ranks = ranks_of(client)
        client.kill()
        assert have_ended(ranks)
    torso("resume", run)
    assert digest(run) == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_freezes_is_replaced(
    settings: tuple[str | Path, ...], whole: str, tiny_model: Path, tmp_path: Path, workers: int
) -> None:
    port, log, run, told = free_ports(workers), tmp_path / "server.log", tmp_path / "run", tmp_path / "client.log"
    serve = ("serve", "--model", tiny_model, "--workers", str(workers), "--port", str(port), "--group-timeout-s", "5")
    split = ("--strategy", "split", "--server", f"http://127.0.0.1:{port}", "--epochs", "2", "--run-dir", run)
    with background(log, *serve) as serving:
        wait_for(lambda: "ready:" in log.read_text(), serving, log)
        with background(told, "train", *settings, *split) as client:
            wait_for(lambda: steps(run) >= 2, client, told)
            os.kill(ranks_of(serving)[-1], signal.SIGSTOP)
            assert client.wait(120) == 0, told.read_text()
    assert "has said nothing for 5 s" in log.read_text()
    assert digest(run) == whole
