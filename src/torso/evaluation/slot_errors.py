"""Which slots of an E2E meaning representation an output leaves out, adds, or gives another value.

By rules: each value of each slot has surface forms, found in its usual company (a low *price*, a low *rating*); values
that the data set does not have, and names, are looked for as they stand. Case and accents do not count. Of each slot:
- *missing*: the input has it, and no value of it is found;
- *wrong*: the input has it, and only other values are found (of a name, another of the data set's names);
- *added*: the input does not have it, and a value is found that can be said of no other slot.
A price in words and the one in pounds that it stands for count as the same, a rating in words and in numbers too. The
rate is missing, wrong and added slots / slots of the inputs, of the eight that E2E has; it can exceed 1.

Rules do not read. An output that says both the right and another value passes; praise ("great food") adds no rating,
and "restaurant" no eatType; a name of a place nearby that is not the data set's is not noticed as added; irony and rare
paraphrases escape. On the human references, which do leave out and mix up slots, the rate is a few percent, not 0:
docs/metrics.md has numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from torso.data.slots import parse_mr
from torso.errors import DataError
from torso.evaluation.segments import Array
from torso.evaluation.slot_forms import ALIASES, EQUIVALENT, FORMS, HINTS, NAMES, SURE

NAMED = ("name", "near")


@dataclass(frozen=True)
class SlotErrors:
    """Of one output; slots by name."""

    num_slots: int
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def num(self) -> int:
        """All of them."""
        return len(self.missing) + len(self.added) + len(self.wrong)

    @property
    def by_kind(self) -> dict[str, list[str]]:
        """Slots of each kind."""
        return {"missing": list(self.missing), "added": list(self.added), "wrong": list(self.wrong)}


def slot_errors(mr: str, output: str) -> SlotErrors | None:
    """Of an output for an E2E meaning representation; None where the input has none of E2E's slots."""
    slots = _known_slots(mr)
    if not slots:
        return None
    text = plain(output)
    own = {slot: plain(value).removeprefix("the ") for slot, value in slots.items() if slot in NAMED}
    found = {slot: _name(slots[slot], name, text) for slot, name in own.items()}
    # Café Sicilia is no café, nor The Rice Boat near a river
    text = _without(text, [form for name in own.values() for form in (name, *ALIASES.get(name, ()))])
    for slot, names in NAMES.items():
        others = {name for name in names if name not in own.values() and f" {name} " in _spaced(text)}
        found[slot] = found.get(slot) or others
    text = _without(text, found["name"] | found["near"])
    found |= {slot: _values(slot, text, slots.get(slot)) for slot in FORMS}
    sure = {slot for slot in found if slot not in SURE or SURE[slot].search(text)}
    return _compared(slots, found, sure)


def slot_error_statistics(mrs: Sequence[str] | None, outputs: Sequence[str]) -> Array:
    """[N, 2]: errors and slots of each output, (0, 0) where the input is no E2E meaning representation.

    The slot error rate is the sum of the first / the sum of the second. DataError where there is no such input at all.
    """
    found = [slot_errors(mr, output) for mr, output in zip(mrs or [], outputs, strict=bool(mrs))]
    if not any(found):
        what = "the inputs are no such thing" if mrs else "no inputs are given"
        raise DataError(f"slot errors need E2E's meaning representations, and {what}")
    return np.array([(e.num, e.num_slots) if e else (0, 0) for e in found], dtype=np.float64)


def plain(text: str) -> str:
    """Lower-cased, without accents, white space joined."""
    letters = unicodedata.normalize("NFKD", text.lower().replace("’", "'"))
    return " ".join("".join(letter for letter in letters if not unicodedata.combining(letter)).split())


def _known_slots(mr: str) -> dict[str, str]:
    try:
        slots = dict(parse_mr(mr))
    except DataError:
        return {}
    return {slot: value for slot, value in slots.items() if (slot in NAMED or slot in FORMS) and value}


def _name(value: str, name: str, text: str) -> set[str]:
    return {value} if any(_as_word(form).search(text) for form in (name, *ALIASES.get(name, ()))) else set()


def _values(slot: str, text: str, expected: str | None) -> set[str]:
    found = {value for value, form in FORMS[slot].items() if form.search(text)}
    if slot == "familyFriendly" and "no" in found:
        return {"no"}
    if expected is not None and expected not in found and _is_hinted(slot, expected, text):
        found.add(expected)
    return found


def _is_hinted(slot: str, value: str, text: str) -> bool:
    hint = HINTS.get(slot, {}).get(value)
    return bool(hint and hint.search(text)) or (value not in FORMS[slot] and plain(value) in text)


def _compared(slots: Mapping[str, str], found: Mapping[str, set[str]], sure: set[str]) -> SlotErrors:
    missing = [slot for slot in slots if not found[slot]]
    wrong = [slot for slot, value in slots.items() if found[slot] and not _agrees(slot, value, found[slot])]
    added = [slot for slot in found if slot not in slots and slot in sure and found[slot]]
    return SlotErrors(len(slots), tuple(missing), tuple(added), tuple(wrong))


def _agrees(slot: str, value: str, found: set[str]) -> bool:
    """People write a price in words or in pounds, a rating in words or in numbers."""
    return value in found or any({value, other} in EQUIVALENT.get(slot, ()) for other in found)


def _without(text: str, names: Iterable[str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        text = _as_word(name).sub("xname", text)
    return text


@lru_cache(maxsize=4096)
def _as_word(name: str) -> re.Pattern[str]:
    """Whole words; a plural or genitive of it too."""
    return re.compile(rf"(?<!\w){re.escape(name)}(?:'?s+)?(?!\w)")


def _spaced(text: str) -> str:
    """Words with a space on both sides, without punctuation."""
    return f" {' '.join(''.join(c if c.isalnum() else ' ' for c in text).split())} "
