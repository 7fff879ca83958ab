"""Writing files so that a power loss leaves the old content or the new one, never a mixture."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torso.errors import ConfigError, StorageError


def check_place(path: Path, setting: str, folder: bool = False) -> None:
    """Raise ConfigError where no file (or `folder`) can be made: better before long work than after.

    A folder may be there, and what is missing above it will be made; a file's folder must be there. `setting` names
    what the path was given for.
    """
    if not folder and (not path.name or path.is_dir()):
        raise ConfigError(f"{setting} is {str(path)!r}, a folder", "Name a file.")
    above = path.parent if not folder else next(one for one in (path, *path.absolute().parents) if one.exists())
    if not above.is_dir():
        what = f"{above} is no folder" if above.exists() else f"there is no folder {above}"
        raise ConfigError(f"{setting} is {path}, and {what}", "Make it, or name another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{setting} is {path}, and {above} may not be written to", "Name another place.")


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """The system's refusal to write (a full disk, say) becomes a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        raise StorageError.of(error, path) from error


def write_synced(path: Path, *chunks: bytes | memoryview) -> None:
    """Write and flush to the disk; not atomic by itself. Raises OSError."""
    with open(path, "wb", buffering=0) as file:
        for chunk in chunks:
            _write(file.fileno(), chunk)
        os.fsync(file.fileno())


def append(path: Path, data: bytes) -> None:
    """Add to a file of lines; a last line that a kill cut is ended first. Raises StorageError."""
    with storing(path), open(path, "ab+", buffering=0) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data
        _write(file.fileno(), data)


def replace_atomically(path: Path, data: bytes) -> None:
    """Replace the file's content in one step, durably. Raises StorageError."""
    temporary = _temporary(path)
    with storing(path):
        try:
            write_synced(temporary, data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def remove_temporaries(folder: Path) -> None:
    """Those that a kill left; only for who is the folder's one writer. Raises StorageError."""
    for path in folder.glob(".*.tmp-*"):
        with storing(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def make_directory(path: Path) -> None:
    """Make it and what is missing above it, durably. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def sync_file(path: Path) -> None:
    """Make what was appended durable; a file that is not there needs nothing. Raises StorageError."""
    if path.exists():
        with storing(path):
            sync_directory(path)


def sync_directory(path: Path) -> None:
    """Make renames and new names in the directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes | memoryview) -> None:
    """All of it: a system may take less than it was given."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A temporary directory to write into, which becomes `path` when the block ends well. Raises StorageError.

    `path` must not hold anything yet.
    """
    temporary = _temporary(path)
    with storing(path):
        make_directory(path.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            yield temporary
            for file in (one for one in temporary.rglob("*") if one.is_file()):
                sync_directory(file)
            sync_directory(temporary)
            os.rename(temporary, path)
            sync_directory(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
