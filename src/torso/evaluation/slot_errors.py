"""Which slots of an E2E meaning representation an output leaves out, adds, or gives another value.

By rules: each value of each slot has surface forms, found in its usual company (a low *price*, a low *rating*). A slot
is *missing* when no value of it is found, *wrong* when only another one is, *added* when the input does not have it.
Names are looked for letter by letter, whatever the case. Rules do not read: irony, rare paraphrases and several places
in one text escape them. On the human references of E2E they find 8 to 10 % of the slots in error, most of it real: that
data set's writers often left something out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torso.data.slots import parse_mr
from torso.errors import DataError
from torso.evaluation.slot_forms import FORMS

_PAIRS = {
    "priceRange": [{"cheap", "less than £20"}, {"moderate", "£20-25"}, {"high", "more than £30"}],
    "customer rating": [{"low", "1 out of 5"}, {"average", "3 out of 5"}, {"high", "5 out of 5"}],
}


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


def slot_errors(mr: str, output: str) -> SlotErrors | None:
    """Of an output for an E2E meaning representation; None where the input is no such thing."""
    try:
        slots = dict(parse_mr(mr))
    except DataError:
        return None
    names = [slots[slot].lower() for slot in ("name", "near") if slot in slots]
    text = output.lower()
    if "name" not in slots:
        return None
    missing: list[str] = [slot for slot in ("name", "near") if slot in slots and slots[slot].lower() not in text]
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "xname")  # Café Sicilia is no café, nor The Rice Boat near a river
    added: list[str] = []
    wrong: list[str] = []
    for slot, forms in FORMS.items():
        found = {value for value, form in forms.items() if form.search(text)}
        if slot == "familyFriendly" and "no" in found:
            found = {"no"}
        if slot not in slots:
            added += [slot] if _is_sure(slot, found) else []
        elif slots[slot] not in found and not _as_good(slot, slots[slot], found):
            (wrong if found else missing).append(slot)
    return SlotErrors(len(slots), tuple(missing), tuple(added), tuple(wrong))


def slot_error_rate(errors: Sequence[SlotErrors]) -> float:
    """Missing, added and wrong slots / slots of the inputs; 0 without any."""
    total = sum(e.num_slots for e in errors)
    return sum(e.num for e in errors) / total if total else 0.0


def _as_good(slot: str, value: str, found: set[str]) -> bool:
    """People write a price in words or in pounds, a rating in words or in numbers."""
    return any({value, other} in _PAIRS.get(slot, ()) for other in found)


def _is_sure(slot: str, found: set[str]) -> bool:
    """Whether something found was said of this slot and of no other: a general word of praise adds no rating."""
    if slot == "eatType":
        return bool(found & {"pub", "coffee shop"})
    if slot == "customer rating":
        return bool(found & {"1 out of 5", "3 out of 5", "5 out of 5"})
    return bool(found)
