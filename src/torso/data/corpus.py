"""What every data set becomes: three splits of groups, a group being one input with all its references."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torso.data.tokenizer import Tokenizer
from torso.errors import DataError

SPLITS = ("train", "dev", "test")


class Block(Protocol):
    """A text as token ids, wherever they are kept."""

    def __len__(self) -> int: ...

    def read(self) -> npt.NDArray[np.int64]:
        """[len] ids."""

    @property
    def identity(self) -> str:
        """Equal when the ids are, known without reading them."""


@dataclass(frozen=True)
class Group:
    """One input and its references.

    mr: the input as it stands in the data set (E2E: the meaning representation; "" for plain text).
    prompt: the linearised text that the model is given.
    references: the texts that are right answers, in the data set's order.
    """

    mr: str
    prompt: str
    references: tuple[str, ...]
    block: Block | None = None
    """In place of a reference, where the data set is prepared: its tokens, to be read as they are."""


@dataclass(frozen=True)
class MadeWith:
    """The tokenizer that blocks were made with; folder: where it lies, when the data set brings it along."""

    fingerprint: str
    vocab_size: int
    folder: Path | None = None

    def check(self, data: str, tokenizer: Tokenizer, named: str) -> None:
        """Raise DataError unless ids of the set `data` mean the same to `tokenizer`, which was given as `named`."""
        if self.fingerprint == tokenizer.fingerprint:
            return
        remedy = f"Prepare the articles again with {named}, or train the model whose tokenizer they were prepared with."
        if self.folder is not None:
            remedy = f"Train with --tokenizer {self.folder}, or prepare the articles again with {named}."
        raise DataError(
            f"{data} was prepared with another tokenizer, of {self.vocab_size:,} tokens ({self.fingerprint[:12]}), than"
            f" {named} has, of {tokenizer.vocab_size:,} ({tokenizer.fingerprint[:12]})",
            remedy,
        )


@dataclass(frozen=True)
class Corpus:
    """A data set.

    name: what the user asked for, such as "demo" or "e2e:e2e-dataset.zip".
    splits: groups by split; a split that the source does not hold is not in it.
    notes: what reading changed or left out, a sentence each, for the user.
    tokenizer: what blocks were made with.
    identity: stands for the content where the data set brings it along.
    """

    name: str
    splits: Mapping[str, Sequence[Group]]
    notes: tuple[str, ...] = field(default=())
    tokenizer: MadeWith | None = None
    identity: str = ""

    def split(self, name: str) -> Sequence[Group]:
        """The groups of "train", "dev" or "test"; DataError when there are none."""
        if name not in SPLITS:
            raise DataError(f"there is no split named {name!r}", f"Choose one of {', '.join(SPLITS)}.")
        groups = self.splits.get(name, ())
        if not groups:
            held = ", ".join(s for s in SPLITS if self.splits.get(s)) or "none"
            raise DataError(f"the data set {self.name} has no {name} examples (splits that it has: {held})")
        return groups

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every split's groups in order: equal when, and only when, the content is equal."""
        if self.identity:
            return self.identity
        digest = hashlib.sha256()
        for name in SPLITS:
            for group in self.splits.get(name, ()):
                line = json.dumps([name, group.mr, group.prompt, list(group.references)], ensure_ascii=True)
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()


def group_pairs(pairs: Iterable[tuple[str, str, str]]) -> tuple[Group, ...]:
    """Groups from (mr, prompt, reference) rows, by mr in order of first appearance."""
    prompts: dict[str, str] = {}
    references: dict[str, list[str]] = {}
    for mr, prompt, reference in pairs:
        prompts.setdefault(mr, prompt)
        references.setdefault(mr, []).append(reference)
    return tuple(Group(mr, prompts[mr], tuple(references[mr])) for mr in prompts)
