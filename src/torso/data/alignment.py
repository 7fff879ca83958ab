"""Which output belongs to which references: by position, checked by what both sides know."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torso.data.scored_files import Entry, merged_by_input
from torso.errors import DataError


@dataclass(frozen=True)
class Aligned:
    """N outputs with their references, and inputs where one side gives them."""

    outputs: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    mrs: tuple[str, ...] | None


def align(references: Sequence[Entry], outputs: Sequence[Entry], mrs: Sequence[Entry] | None = None) -> Aligned:
    """By position. DataError, with the first mismatch as far as it can be told, unless numbers and inputs agree."""
    groups = _as_many(references, len(outputs))
    _check_inputs(groups, outputs)
    if len(groups) != len(outputs):
        raise _unequal(groups, outputs)
    if mrs is not None:
        _check_inputs(mrs, groups)
        _check_inputs(mrs, outputs)
        if len(mrs) != len(outputs):
            raise DataError(f"{len(mrs)} inputs, but {len(outputs)} outputs", "Give one input for each output.")
    given = next((side for side in (mrs, groups, outputs) if side and all(e.mr is not None for e in side)), None)
    return Aligned(
        tuple(e.texts[0] for e in outputs),
        tuple(e.texts for e in groups),
        None if given is None else tuple(e.mr or "" for e in given),
    )


def _as_many(references: Sequence[Entry], num: int) -> Sequence[Entry]:
    """Groups as the file has them; a file that is one block has a reference a line; inputs may come back later."""
    if len(references) == 1 and num != 1 and references[0].mr is None:
        return [Entry(f"{references[0].place} + {i}", None, (text,)) for i, text in enumerate(references[0].texts)]
    if len(references) != num and all(e.mr is not None for e in references):
        merged = merged_by_input(references)
        return merged if len(merged) == num else references
    return references


def _check_inputs(one: Sequence[Entry], other: Sequence[Entry]) -> None:
    """Where both sides name their inputs, the first that differ; white space and case do not count."""
    for number, (a, b) in enumerate(zip(one, other, strict=False), start=1):
        if a.mr is not None and b.mr is not None and _key(a.mr) != _key(b.mr):
            found = f"input {number} differs: {a.mr[:80]!r} ({a.place}), but {b.mr[:80]!r} ({b.place})"
            same = sorted(_key(e.mr or "") for e in one) == sorted(_key(e.mr or "") for e in other)
            raise DataError(
                found, "Both hold the same inputs: bring them into one order." if same else _hint(one, other)
            )


def _key(mr: str) -> str:
    return " ".join(mr.lower().split())


def _hint(one: Sequence[Entry], other: Sequence[Entry]) -> str:
    return "" if len(one) == len(other) else f"There are {len(one)} on one side and {len(other)} on the other."


def _unequal(groups: Sequence[Entry], outputs: Sequence[Entry]) -> DataError:
    numbers = f"{len(outputs)} outputs, but references of {len(groups)} inputs"
    if len(groups) > 1 and all(len(g.texts) == len(outputs) for g in groups):
        remedy = "The references lie the other way round: give one group for each output."
        return DataError(f"{numbers}, each with {len(outputs)}", remedy)
    if not groups:
        return DataError(numbers)
    place = first_shift([e.texts[0] for e in outputs], [e.texts for e in groups])
    if len(outputs) < len(groups):
        at = groups[place]
        where = f"the first without an output seems to be number {place + 1}, {at.texts[0][:60]!r} ({at.place})"
    else:
        extra = outputs[place]
        where = f"the first without references seems to be number {place + 1}, {extra.texts[0][:60]!r} ({extra.place})"
    return DataError(f"{numbers}; {where}", "Give one output for each input, an empty line where there is none.")


def first_shift(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> int:
    """Where the longer list has something that the shorter lacks: the place that makes words agree best.

    Up to there item i belongs to item i, from there on the shorter's item i to the longer's item i + surplus.
    """
    words, others, weights = _weighed(outputs, references)
    short, long = (words, others) if len(words) < len(others) else (others, words)
    surplus = len(long) - len(short)
    total, best, place = 0.0, 0.0, 0
    for i, item in enumerate(short):
        total += _agreement(item, long[i], weights) - _agreement(item, long[i + surplus], weights)
        if total > best + 1e-9:
            best, place = total, i + 1
    return place


def shifted_run(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """First and last of the outputs in a row, ten or more, that fit their neighbours' references clearly better.

    As many outputs as inputs can hide that a line is missing and another too many. None where all is well.
    """
    words, others, weights = _weighed(outputs, references)
    own = [_agreement(one, other, weights) for one, other in zip(words, others, strict=True)]
    for offset in (1, -1):
        neighbours = [others[i + offset] if 0 <= i + offset < len(others) else set() for i in range(len(others))]
        gains = [_agreement(one, other, weights) - o for one, other, o in zip(words, neighbours, own, strict=True)]
        if (found := _clear_run(gains)) is not None:
            return found
    return None


def _clear_run(gains: Sequence[float]) -> tuple[int, int] | None:
    """The run with the largest sum among those of three times what chance would make of numbers as large."""
    total, spread, start, best, found = 0.0, 0.0, 0, 0.0, None
    for i, gain in enumerate(gains):
        if total <= 0.0:
            total, spread, start = 0.0, 0.0, i
        total, spread = total + gain, spread + gain * gain
        if total > best and total * total > 9.0 * spread:
            best, found = total, (start, i)
    return found


def _weighed(
    outputs: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[set[str]], list[set[str]], dict[str, float]]:
    """Words of outputs and of references, and what each counts."""
    words, others = [_words(text) for text in outputs], [_words(" ".join(texts)) for texts in references]
    known_by = Counter(word for group in others for word in group)
    return words, others, {word: math.log(1.0 + len(others) / count) for word, count in known_by.items()}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _agreement(one: set[str], other: set[str], weights: Mapping[str, float]) -> float:
    """Rare words that both have: a name tells more than an article."""
    return sum(weights.get(word, 0.0) for word in one & other)
