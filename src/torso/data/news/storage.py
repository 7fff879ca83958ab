"""Files of tokens that grow, and that can be taken back to an earlier length."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torso.errors import DataError
from torso.files import storing

POSITION = "<u8"
"""NumPy's name of the type of an index's entries."""


class Growing:
    """A file that is appended to; what is beyond `length` bytes is forgotten when it is opened.

    Raises StorageError, and DataError when it is shorter than that.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        if length > (path.stat().st_size if path.exists() else 0):
            raise DataError(f"{path} is shorter than it was written", "Delete the folder and prepare again.")
        with storing(path):
            self._file: IO[bytes] = open(path, "r+b" if path.exists() else "w+b")
            self._file.truncate(length)
            self._file.seek(length)

    def append(self, data: bytes | memoryview) -> None:
        """Not durable before `sync`."""
        with storing(self.path):
            self._file.write(data)

    def sync(self) -> None:
        """To the disk."""
        with storing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Without a sync."""
        with storing(self.path):
            self._file.close()


@dataclass(kw_only=True)
class Written:
    """How much of a split is written."""

    articles: int = 0
    tokens: int = 0


class SplitWriter:
    """The tokens of a split's articles in shards of equal size, and an index: where each article begins.

    One end token comes first and one after each article. `written` says what is there already; more is cut off.
    """

    def __init__(self, folder: Path, split: str, written: Written, shard_tokens: int, end: bytes) -> None:
        self._folder, self._split, self._shard_tokens, self._end = folder, split, shard_tokens, end
        self.written = written
        self._index = Growing(index_path(folder, split), 8 * written.articles)
        # a shard that is just full is still the last one
        number = max(0, written.tokens - 1) // shard_tokens
        for full in range(number):
            Growing(shard_path(folder, split, full), shard_tokens * len(end)).close()
        length = (written.tokens - number * shard_tokens) * len(end)
        self._shard = Growing(shard_path(folder, split, number), length)
        self._full: list[Growing] = []
        if not written.tokens:
            self._append(end)

    def add(self, ids: bytes) -> None:
        """One article."""
        self._index.append(self.written.tokens.to_bytes(8, "little"))
        self._append(ids + self._end)
        self.written.articles += 1

    def sync(self) -> None:
        """Make all of it durable."""
        for file in (*self._full, self._shard, self._index):
            file.sync()
        for file in self._full:
            file.close()
        self._full.clear()

    def close(self) -> None:
        """Without a sync."""
        for file in (*self._full, self._shard, self._index):
            file.close()

    def _append(self, ids: bytes) -> None:
        rest, size = memoryview(ids), len(self._end)
        if self.written.tokens and self.written.tokens % self._shard_tokens == 0:
            self._next_shard()
        while rest:
            room = self._shard_tokens - self.written.tokens % self._shard_tokens
            part, rest = rest[: room * size], rest[room * size :]
            self._shard.append(part)
            self.written.tokens += len(part) // size
            if rest and self.written.tokens % self._shard_tokens == 0:
                self._next_shard()

    def _next_shard(self) -> None:
        self._full.append(self._shard)
        number = self.written.tokens // self._shard_tokens
        self._shard = Growing(shard_path(self._folder, self._split, number), 0)


def shard_path(folder: Path, split: str, number: int) -> Path:
    """Of a split's tokens."""
    return folder / f"{split}-{number:05d}.bin"


def index_path(folder: Path, split: str) -> Path:
    """Of where a split's articles begin, in tokens, as unsigned 64-bit numbers."""
    return folder / f"{split}.index"


def sha256_of(path: Path) -> str:
    """Of a file's content."""
    with storing(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
