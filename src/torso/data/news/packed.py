"""Prepared news as a data set: blocks of tokens, read from the shards when they are needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from torso.data.corpus import Corpus, Group, MadeWith
from torso.data.news.manifest import TOKENIZER, Manifest, Split


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of token ids of NumPy's type `dtype`."""

    path: Path
    dtype: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tokens of one shard."""

    shard: Shard
    start: int
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> npt.NDArray[np.int64]:
        """[length] token ids."""
        return _mapped(self.shard.path, self.shard.dtype)[self.start : self.start + self.length].astype(np.int64)

    @property
    def identity(self) -> str:
        """The shard's SHA-256 and the place in it."""
        return f"{self.shard.sha256} {self.start} {self.length}"


class BlockGroups(Sequence[Group]):
    """A split's blocks in order; each is made when it is asked for, for there may be millions."""

    def __init__(self, folder: Path, manifest: Manifest, split: Split, chosen: range | None = None) -> None:
        self._from = folder, manifest, split
        self._shards = [Shard(folder / file.name, manifest.dtype, file.sha256) for file in split.shards]
        self._chosen = range(split.num_blocks(manifest.block_size)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Group: ...

    @overload
    def __getitem__(self, place: slice) -> BlockGroups: ...

    def __getitem__(self, place: int | slice) -> Group | BlockGroups:
        if isinstance(place, slice):
            return BlockGroups(*self._from, self._chosen[place])
        _, manifest, split = self._from
        first = self._chosen[place] * manifest.block_size
        shard, start = divmod(first, manifest.shard_tokens)
        length = min(manifest.block_size, split.tokens - first)
        return Group("", "", (), Block(self._shards[shard], start, length))


def load_news(where: str) -> Corpus:
    """The corpus of a folder that `torso prepare news` made. DataError when a file is not what was written."""
    folder = Path(where).expanduser()
    manifest = Manifest.load(folder)
    manifest.check(folder)
    own = folder / TOKENIZER
    splits = {name: BlockGroups(folder, manifest, split) for name, split in manifest.splits.items()}
    return Corpus(
        name=f"news:{where}",
        splits={name: groups for name, groups in splits.items() if groups},
        tokenizer=MadeWith(manifest.tokenizer, manifest.vocab_size, own if own.is_dir() else None),
        identity=manifest.fingerprint,
    )


@functools.lru_cache(maxsize=64)
def _mapped(path: Path, dtype: str) -> npt.NDArray[np.unsignedinteger]:
    return np.memmap(path, dtype=dtype, mode="r")
