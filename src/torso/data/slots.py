"""Meaning representations: `name[Blue Spice], eatType[pub]` and the line of text that the model is given."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torso.errors import DataError

_OPENING = re.compile(r"\s*([^\[\],]+?)\s*\[")
# A value can end at a "]" after which the text ends or the next slot opens.
_CLOSING = re.compile(r"\]\s*(?:$|,(?=\s*[^\[\],]+\[))")


def parse_mr(mr: str) -> list[tuple[str, str]]:
    """The (slot, value) pairs of an MR in order; values may hold commas and brackets.

    A value ends at the first closing bracket that balances it and that the end or another slot follows; where
    none balances, at the first that the end or another slot follows. DataError when `mr` is of another form.
    """
    slots: list[tuple[str, str]] = []
    position = 0
    while position < len(mr):
        opening = _OPENING.match(mr, position)
        closing = _end_of_value(mr, opening.end()) if opening else None
        if opening is None or closing is None:
            raise _malformed(mr, position)
        slots.append((opening.group(1), mr[opening.end() : closing.start()].strip()))
        position = closing.end()
    if not slots:
        raise _malformed(mr, 0)
    return slots


def format_mr(slots: Iterable[tuple[str, str]]) -> str:
    """The MR of (slot, value) pairs: `name[Blue Spice], eatType[pub]`."""
    return ", ".join(f"{slot}[{value}]" for slot, value in slots)


def linearise(slots: Iterable[tuple[str, str]]) -> str:
    """The prompt of (slot, value) pairs: `name : Blue Spice | eatType : pub`."""
    return " | ".join(f"{slot} : {value}" for slot, value in slots)


def prompt_of(mr: str) -> str:
    """The prompt of an MR; DataError when it is malformed."""
    return linearise(parse_mr(mr))


def _end_of_value(mr: str, start: int) -> re.Match[str] | None:
    candidates = list(_CLOSING.finditer(mr, start))
    for candidate in candidates:
        value = mr[start : candidate.start()]
        if value.count("[") == value.count("]"):
            return candidate
    return candidates[0] if candidates else None


def _malformed(mr: str, position: int) -> DataError:
    return DataError(
        f"the meaning representation {_shortened(mr)} is malformed at character {position + 1}",
        "Expected slots with values in brackets, such as name[Blue Spice], eatType[pub].",
    )


def _shortened(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
