from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torso.errors import ConfigError
from torso.parallel.launch import launch, spare_localhost, under_torchrun

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).parents[2] / "src"


def command(behaviour: str, folder: Path, *settings: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": f"{PROGRAMS}:{SOURCE}", "OMP_NUM_THREADS": "7"}
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", behaviour, str(folder), *settings],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(behaviour: str, folder: Path, *settings: str) -> tuple[int, str, str]:
    process = command(behaviour, folder, *settings)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@contextlib.contextmanager
def working(behaviour: str, folder: Path, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """A launch of which both ranks are ready."""
    process = command(behaviour, folder, *settings)
    try:
        assert process.stdout is not None
        assert sorted(process.stdout.readline().strip() for _ in range(2)) == ["ready 0", "ready 1"]
        yield process
    finally:
        process.kill()
        process.communicate()


def alive(folder: Path) -> list[int]:
    found = [int(path.read_text()) for path in folder.glob("pid-*")]
    return [pid for pid in found if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_ranks_get_their_rank_threads_and_a_way_around_the_proxy(tmp_path: Path) -> None:
    code, out, err = run("environment", tmp_path)
    lines = sorted(out.splitlines())
    assert (code, err) == (0, "")
    assert [line.split()[:4] for line in lines] == [["rank", "0", "2", "1"], ["rank", "1", "2", "1"]]
    assert all("127.0.0.1" in line for line in lines)


@pytest.mark.slow
def test_a_wrong_request_is_told_once_and_not_started_again(tmp_path: Path) -> None:
    code, out, err = run("refuse", tmp_path)
    assert (code, err) == (2, "torso: error: rank one does not like it. Ask otherwise.\n")
    assert sorted(out.split("\n")) == ["", "started 0", "started 1"]


@pytest.mark.slow
def test_a_fault_in_the_program_is_not_started_again(tmp_path: Path) -> None:
    code, out, err = run("bug", tmp_path, "num_ranks=1")
    assert code == 1
    assert out.count("started") == 1
    assert err.splitlines()[-1].startswith("torso: error: internal error: KeyError")


@pytest.mark.slow
def test_a_crash_loop_ends_with_a_reason(tmp_path: Path) -> None:
    code, out, err = run("die", tmp_path, "max_restarts=2")
    assert code == 1
    assert out.count("started 1") == 3
    assert err.splitlines() == [
        "torso: rank 1 ended with signal SIGKILL; restarting the group (1 of 2 without progress)",
        "torso: rank 1 ended with signal SIGKILL; restarting the group (2 of 2 without progress)",
        "torso: error: rank 1 ended with signal SIGKILL after 2 restarts without progress; "
        "what it last said stands above",
    ]


@pytest.mark.slow
def test_the_budget_of_restarts_refills_after_progress(tmp_path: Path) -> None:
    code, _, err = run("advance", tmp_path, "max_restarts=1", "num_ranks=1")
    assert code == 0
    assert err.count("restarting") == 5


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_lets_all_ranks_save(tmp_path: Path, number: signal.Signals) -> None:
    with working("work", tmp_path) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
        assert sorted(out.split("\n")) == ["", "saved 0", "saved 1"]


@pytest.mark.slow
def test_a_second_request_to_stop_does_not_wait(tmp_path: Path) -> None:
    with working("stubborn", tmp_path) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 1
        assert err.startswith("torso: error: ranks were asked to stop and ended with signal SIGKILL")


@pytest.mark.slow
def test_ranks_that_do_not_stop_are_ended_after_the_grace(tmp_path: Path) -> None:
    with working("stubborn", tmp_path, "grace_s=1") as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 1
        assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_ranks_die_with_a_killed_launcher(tmp_path: Path) -> None:
    with working("work", tmp_path) as process:
        assert len(alive(tmp_path)) == 2
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while alive(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(tmp_path) == []


@pytest.mark.slow
def test_a_group_forms_anew_after_each_of_six_kills(tmp_path: Path) -> None:
    code, out, err = run("group", tmp_path, "max_restarts=6")
    assert code == 0, err
    assert out.splitlines() == [f"life {life} sum 3" for life in range(7)]


def test_nothing_can_be_launched_without_ranks_or_threads() -> None:
    with pytest.raises(ConfigError, match="at least 1 rank"):
        launch("ranks", [], num_ranks=0, threads=1)


def test_a_proxy_does_not_stand_before_localhost() -> None:
    assert spare_localhost({"no_proxy": "intra.net"})["NO_PROXY"] == "intra.net,localhost,127.0.0.1,::1"
    assert spare_localhost(spare_localhost({})) == spare_localhost({})


def test_a_rank_of_ours_is_not_taken_for_one_of_torchrun() -> None:
    assert under_torchrun({"TORCHELASTIC_RUN_ID": "a"})
    assert not under_torchrun({"TORCHELASTIC_RUN_ID": "a", "TORSO_OUTCOME": "b"})
    assert not under_torchrun({})
