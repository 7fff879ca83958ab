"""Prepared news as a data set: blocks of tokens, read from the shards when they are needed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torso.data.corpus import Corpus, Group
from torso.data.news.manifest import Manifest, Split


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tokens of one shard."""

    shard: Path
    dtype: str
    start: int
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> npt.NDArray[np.int64]:
        """[length] token ids."""
        return _mapped(self.shard, self.dtype)[self.start : self.start + self.length].astype(np.int64)


def load_news(where: str) -> Corpus:
    """The corpus of a folder that `torso prepare news` made. DataError when a file is not what was written."""
    folder = Path(where).expanduser()
    manifest = Manifest.load(folder)
    manifest.check(folder)
    splits = {name: _groups(folder, manifest, split) for name, split in manifest.splits.items()}
    return Corpus(
        name=f"news:{where}",
        splits={name: groups for name, groups in splits.items() if groups},
        tokenizer=manifest.tokenizer,
        identity=manifest.fingerprint,
    )


def _groups(folder: Path, manifest: Manifest, split: Split) -> tuple[Group, ...]:
    size, groups = manifest.block_size, []
    for first in range(0, split.num_blocks(size) * size, size):
        number, start = divmod(first, manifest.shard_tokens)
        block = Block(folder / split.shards[number].name, manifest.dtype, start, min(size, split.tokens - first))
        groups.append(Group("", "", (), block))
    return tuple(groups)


@functools.lru_cache(maxsize=64)
def _mapped(path: Path, dtype: str) -> npt.NDArray[np.unsignedinteger]:
    return np.memmap(path, dtype=dtype, mode="r")
