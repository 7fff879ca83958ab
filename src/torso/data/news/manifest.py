"""What a folder of prepared news says of itself: `manifest.json`, written last, so that a folder with one is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torso.data.news.storage import index_path, sha256_of, shard_path
from torso.errors import DataError
from torso.files import replace_atomically

NAME = "manifest.json"
FORMAT = 1
SPLITS = ("train", "dev")
TOKENIZER = "tokenizer"
"""Folder of a vocabulary that was learnt."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a split."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split: its tokens in shards, and where its articles begin."""

    articles: int
    tokens: int
    shards: tuple[File, ...]
    index: File

    def num_blocks(self, block_size: int) -> int:
        """The last one may be shorter; a single token that is left over makes none, there is nothing to predict."""
        return -(-(self.tokens - 1) // block_size) if self.tokens > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a prepared data set."""

    format: int
    request: Mapping[str, Any]
    """Inputs with their SHA-256, and all settings."""
    tokenizer: str
    """Its fingerprint."""
    vocab_size: int
    eos_id: int
    dtype: str
    block_size: int
    shard_tokens: int
    rows: Mapping[str, int]
    """Rows by what became of them."""
    examples: Mapping[str, tuple[str, ...]]
    """Some rows that could not be used, by reason."""
    splits: Mapping[str, Split] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what training sees."""
        shards = {name: [file.sha256 for file in split.shards] for name, split in self.splits.items()}
        seen = [self.tokenizer, self.block_size, shards]
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Raises StorageError."""
        document = asdict(self) | {"fingerprint": self.fingerprint}
        for name, split in self.splits.items():
            document["splits"][name]["blocks"] = split.num_blocks(self.block_size)
        replace_atomically(folder / NAME, json.dumps(document, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Raises DataError."""
        path = folder / NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            known = document.pop("fingerprint")
            splits = {name: _split(value) for name, value in document.pop("splits").items()}
            manifest = cls(**document, splits=splits)
            if manifest.format != FORMAT or manifest.fingerprint != known:
                raise ValueError("its fingerprint is another")
        except FileNotFoundError:
            remedy = "Prepare it with `torso prepare news ARTICLES.csv --out DIR`; the same command goes on."
            raise DataError(f"{folder} holds no prepared news, or not all of it", remedy) from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path} is damaged: {error}", "Prepare the data again.") from None
        return manifest

    def check(self, folder: Path) -> None:
        """Raise DataError that names a file which is not what was written."""
        for split in self.splits.values():
            for file in (*split.shards, split.index):
                path = folder / file.name
                size = path.stat().st_size if path.is_file() else -1
                if size != file.size or sha256_of(path) != file.sha256:
                    what = "is missing" if size < 0 else f"has {size} bytes, expected {file.size}"
                    what = what if size != file.size else "has other content than was written"
                    raise DataError(f"{path} {what}", "Prepare the data again.")


def describe_split(folder: Path, name: str, articles: int, tokens: int, shard_tokens: int) -> Split:
    """From what is on the disk."""
    shards = [shard_path(folder, name, number) for number in range(-(-tokens // shard_tokens))]
    files = [_file(path) for path in (*shards, index_path(folder, name))]
    return Split(articles=articles, tokens=tokens, shards=tuple(files[:-1]), index=files[-1])


def _file(path: Path) -> File:
    return File(name=path.name, size=path.stat().st_size, sha256=sha256_of(path))


def _split(value: dict[str, Any]) -> Split:
    shards = tuple(File(**file) for file in value["shards"])
    return Split(articles=value["articles"], tokens=value["tokens"], shards=shards, index=File(**value["index"]))
