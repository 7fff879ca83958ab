"""Writing files so that a power loss leaves the old content or the new one, never a mixture."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write and flush to the disk; not atomic by itself."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_atomically(path: Path, data: bytes) -> None:
    """Replace the file's content in one step, durably."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and new names in the directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
