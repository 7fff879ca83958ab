"""One run, one writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torso.errors import RunDirectoryError
from torso.training.lock import holder, locked

HOLD = """
import subprocess, sys
sys.argv = ["/somewhere/torso/__main__.py", "resume", "runs/my run"]
from pathlib import Path
from torso.training.lock import locked
with locked(Path(sys.stdin.readline().strip())):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Holds the lock of the folder, and has started a process that outlives it."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{folder}\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def test_a_second_writer_is_told_the_process_the_machine_since_when_and_the_command(tmp_path: Path) -> None:
    with another_process(tmp_path) as (process, _):
        with pytest.raises(RunDirectoryError) as caught, locked(tmp_path):
            pass
        assert re.search(
            rf"written by process {process.pid} on {socket.gethostname()} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d.*: "
            "torso resume 'runs/my run'",
            str(caught.value),
        )
        assert caught.value.exit_code == 2


def test_the_lock_of_a_killed_process_is_free_though_a_process_that_it_started_lives_on(tmp_path: Path) -> None:
    with another_process(tmp_path) as (process, child):
        process.kill()
        process.wait()
        os.kill(child, 0)
        assert holder(tmp_path) is None
        with locked(tmp_path):
            assert holder(tmp_path) is not None


def test_the_lock_is_free_afterwards_and_after_an_error(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), locked(tmp_path):
        raise KeyError
    assert holder(tmp_path) is None
    with locked(tmp_path):
        pass
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_folder_without_a_lock_is_held_by_nobody_and_asking_leaves_nothing(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_a_lock_without_words_still_holds(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / "lock").write_bytes(b"")
        with pytest.raises(RunDirectoryError, match="by another process"), locked(tmp_path):
            pass


def test_a_full_disk_does_not_keep_the_lock_from_holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_room)
    with locked(tmp_path):
        assert holder(tmp_path) == "another process"


def test_a_file_system_without_locks_is_told_apart_from_a_lock_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(RunDirectoryError, match="cannot be locked: No locks available"), locked(tmp_path):
        pass
