"""What every data set becomes: three splits of groups, a group being one input with all its references."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torso.errors import DataError

SPLITS = ("train", "dev", "test")


class Block(Protocol):
    """A text as token ids, wherever they are kept."""

    def __len__(self) -> int: ...

    def read(self) -> npt.NDArray[np.int64]:
        """[len] ids."""


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
class Corpus:
    """A data set.

    name: what the user asked for, such as "demo" or "e2e:e2e-dataset.zip".
    splits: groups by split; a split that the source does not hold is not in it.
    notes: what reading changed or left out, a sentence each, for the user.
    tokenizer: fingerprint of the tokenizer that blocks were made with.
    identity: stands for the content where the data set brings it along.
    """

    name: str
    splits: Mapping[str, tuple[Group, ...]]
    notes: tuple[str, ...] = field(default=())
    tokenizer: str | None = None
    identity: str = ""

    def split(self, name: str) -> list[Group]:
        """The groups of "train", "dev" or "test"; DataError when there are none."""
        if name not in SPLITS:
            raise DataError(f"there is no split named {name!r}", f"Choose one of {', '.join(SPLITS)}.")
        groups = self.splits.get(name, ())
        if not groups:
            held = ", ".join(s for s in SPLITS if self.splits.get(s)) or "none"
            raise DataError(f"the data set {self.name} has no {name} examples (splits that it has: {held})")
        return list(groups)

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
