"""The lock of a run's one writer: held by the command, freed by the system when it ends, however it ends.

The file says who holds it. It is not inherited by the processes that the command starts, so a rank that outlives
its command for a moment does not keep `torso resume` out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from torso.errors import RunDirectoryError

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the folder's one writer; raises RunDirectoryError naming who is."""
    with _opened(folder / LOCK) as descriptor:
        if not _take(descriptor, folder):
            raise held_error(folder, _read(descriptor))
        _say_who(descriptor)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)


def holder(folder: Path) -> str | None:
    """Who writes into the folder now; None when nobody does."""
    if not (folder / LOCK).is_file():
        return None
    with _opened(folder / LOCK) as descriptor:
        return None if _take(descriptor, folder) else _read(descriptor)


def held_error(folder: Path, who: str) -> RunDirectoryError:
    """What a second writer is told."""
    return RunDirectoryError(f"{folder} is being written by {who}", "Wait for it, or stop it first.")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        # Python's descriptors are closed in processes that are started
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be opened: {error.strerror}", "May you write there?") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise RunDirectoryError(
            f"{folder} cannot be locked: {error.strerror}", "Put the run on a file system that has locks."
        ) from error
    return True


def _say_who(descriptor: int) -> None:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    words = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": _command()}
    # the lock holds without these words too, on a full disk, say
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(words).encode(), 0)


def _read(descriptor: int) -> str:
    try:
        words = json.loads(os.pread(descriptor, 1 << 16, 0))
        return f"process {words['pid']} on {words['host']} since {words['since']}: {words['command']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _command() -> str:
    """This process as one would type it."""
    name = Path(sys.argv[0]).name
    return shlex.join(["torso" if name == "__main__.py" else name, *sys.argv[1:]])
