from __future__ import annotations

import pytest

from torso.data.slots import format_mr, linearise, parse_mr, prompt_of
from torso.errors import DataError


def test_an_mr_becomes_a_line_of_slots_and_values() -> None:
    mr = "name[Blue Spice], eatType[coffee shop], customer rating[5 out of 5]"
    assert prompt_of(mr) == "name : Blue Spice | eatType : coffee shop | customer rating : 5 out of 5"


@pytest.mark.parametrize(
    ("mr", "slots"),
    [
        ("name[Fish, Chips, and Co], eatType[pub]", [("name", "Fish, Chips, and Co"), ("eatType", "pub")]),
        ("name[Bar [old]], near[The Oak]", [("name", "Bar [old]"), ("near", "The Oak")]),
        ("name[Bar [a], b[c]], near[X]", [("name", "Bar [a], b[c]"), ("near", "X")]),
        ("name[a]b], near[X]", [("name", "a]b"), ("near", "X")]),
        ("name[a[b], near[X]", [("name", "a[b"), ("near", "X")]),
        ("name[A],eatType[pub]", [("name", "A"), ("eatType", "pub")]),
        (" name [ A ] ", [("name", "A")]),
        ("name[], near[X]", [("name", ""), ("near", "X")]),
        ("name[Café £20], name[B]", [("name", "Café £20"), ("name", "B")]),
    ],
)
def test_values_may_hold_commas_and_brackets(mr: str, slots: list[tuple[str, str]]) -> None:
    assert parse_mr(mr) == slots


@pytest.mark.parametrize("mr", ["", "  ", "Blue Spice", "name[Blue", "name[A] eatType[pub]x", "[A]", "name[A], pub"])
def test_a_malformed_mr_is_refused_in_one_line(mr: str) -> None:
    with pytest.raises(DataError, match="malformed at character") as caught:
        parse_mr(mr)
    assert "\n" not in str(caught.value)


def test_formatting_undoes_parsing() -> None:
    slots = [("name", "Bar [old], new"), ("eatType", "pub")]
    assert parse_mr(format_mr(slots)) == slots
    assert linearise(slots) == "name : Bar [old], new | eatType : pub"
