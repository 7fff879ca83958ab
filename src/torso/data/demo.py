"""The demo set: generated, in E2E's format, the same on every machine.

Restaurants are invented. An MR holds a name and two to seven more of E2E's eight slots, which gives tens of
thousands of combinations. No name of dev or test occurs in train (nor of test in dev), be it as `name` or
as `near`, and neither does any combination of the other slots' values: test MRs are unseen, and so are
their names.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torso.data.corpus import SPLITS, Corpus, Group
from torso.data.demo_grammar import NAME_FIRST, NAME_SECOND, SLOTS, STYLES, VALUES, reference
from torso.data.e2e import FILES
from torso.data.slots import format_mr, linearise
from torso.errors import DataError
from torso.randomness import hash64

_PRESENT_IN_HUNDRED = {"eatType": 90}
_PRESENT_OTHERWISE = 55
_MIN_SLOTS = 3


@dataclass(frozen=True, kw_only=True)
class DemoSizes:
    """How large a demo set to generate.

    train, dev, test: MRs in each split.
    train_references: references of each MR in train, each in another style, at most six. Few, so that an
        epoch of a given length shows many MRs and names.
    references: the same in dev and test.
    seed: another seed gives another set.
    """

    train: int = 600
    dev: int = 40
    test: int = 60
    train_references: int = 2
    references: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for count in (self.train_references, self.references):
            if not 1 <= count <= len(STYLES):
                raise DataError(f"{count} references an MR were asked for", f"Choose 1 to {len(STYLES)}.")
        for split in SPLITS:
            most = len(_names(split)) // 2
            if not 1 <= getattr(self, split) <= most:
                raise DataError(f"{getattr(self, split)} MRs were asked for in {split}", f"Choose 1 to {most}.")


def demo_corpus(sizes: DemoSizes | None = None) -> Corpus:
    """The generated set; without sizes the standard one."""
    sizes = sizes or DemoSizes()
    taken: set[tuple[tuple[str, str], ...]] = set()
    splits = {split: tuple(_groups(split, getattr(sizes, split), sizes, taken)) for split in SPLITS}
    return Corpus("demo", splits)


def write_csv(corpus: Corpus, folder: Path) -> None:
    """Write a corpus as E2E's official files: trainset.csv, devset.csv, testset_w_refs.csv and
    testset.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in FILES.items():
        rows = [[group.mr, text] for group in corpus.split(split) for text in group.references]
        _write(folder / name, ["mr", "ref"], rows)
    _write(folder / "testset.csv", ["MR"], [[group.mr] for group in corpus.split("test")])


def _write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _groups(split: str, count: int, sizes: DemoSizes, taken: set[tuple[tuple[str, str], ...]]) -> Iterator[Group]:
    """`count` groups; the combinations of values in `taken` are avoided, and new ones added to it."""
    names = _shuffled_names(split, sizes.seed)
    for number in range(count):
        values = _new_values(split, number, sizes.seed, taken)
        # Two fresh names for each MR: how a name is copied is learnt from many names.
        values |= {"name": names[2 * number]} | ({"near": names[2 * number + 1]} if "near" in values else {})
        slots = [(slot, values[slot]) for slot in SLOTS if slot in values]
        first = hash64("demo", sizes.seed, split, number, "style")
        num_references = sizes.train_references if split == "train" else sizes.references
        styles = [(first + offset) % len(STYLES) for offset in range(num_references)]
        yield Group(format_mr(slots), linearise(slots), tuple(reference(values, style) for style in styles))


def _new_values(split: str, number: int, seed: int, taken: set[tuple[tuple[str, str], ...]]) -> dict[str, str]:
    attempt = 0
    while True:
        values = _draw_values(seed, split, number, attempt)
        key = tuple((slot, value) for slot, value in values.items() if slot != "near")
        if key not in taken and 1 + len(values) >= _MIN_SLOTS:
            taken.add(key)
            return values
        attempt += 1


def _draw_values(seed: int, split: str, number: int, attempt: int) -> dict[str, str]:
    """Values of the slots that this MR has, but for its names."""
    values: dict[str, str] = {}
    for slot in SLOTS[1:]:
        bits = hash64("demo", seed, split, number, attempt, slot)
        present, choice = bits % 100, bits // 100
        if present < _PRESENT_IN_HUNDRED.get(slot, _PRESENT_OTHERWISE):
            options = VALUES.get(slot, ("",))
            values[slot] = options[choice % len(options)]
    return values


def _shuffled_names(split: str, seed: int) -> list[str]:
    return sorted(_names(split), key=lambda name: hash64("demo", seed, "order", name))


def _names(split: str) -> list[str]:
    """The names that belong to a split: 8 in 10 to train, 1 in 10 each to dev and test."""
    names = []
    for first in NAME_FIRST:
        for second in NAME_SECOND:
            bits = hash64("demo name", first, second)
            owner = ("dev", "test")[bits % 10] if bits % 10 < 2 else "train"
            if owner == split:
                names.append(f"{first} {second}")
    return names
