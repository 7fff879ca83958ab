from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from torso.data.corpus import Corpus
from torso.data.demo_grammar import reference
from torso.data.slots import format_mr, parse_mr
from torso.errors import DataError
from torso.evaluation.metrics import ratio
from torso.evaluation.slot_errors import SlotErrors, slot_error_statistics, slot_errors
from torso.evaluation.slot_forms import EQUIVALENT, FORMS

if TYPE_CHECKING:
    from tests.evaluation.conftest import Scored

MR = "name[Blue Spice], eatType[pub], food[Chinese], priceRange[less than £20], familyFriendly[no], near[Café Rouge]"
GOOD = "Blue Spice is a cheap Chinese pub near Café Rouge. It does not welcome children."


def found(mr: str, output: str) -> SlotErrors:
    errors = slot_errors(mr, output)
    assert errors is not None
    return errors


def rate(mrs: Sequence[str], outputs: Sequence[str]) -> float:
    return float(ratio(slot_error_statistics(mrs, outputs).sum(axis=0)))


def test_a_right_output_has_none_and_one_of_each_kind_is_told_apart() -> None:
    assert found(MR, GOOD) == SlotErrors(6)
    bad = found(MR, "Blue Spice is a Japanese pub by the river near Café Rouge. No kids.")
    assert (bad.missing, bad.wrong, bad.added) == (("priceRange",), ("food",), ("area",))
    assert rate([MR, MR], [GOOD, "Blue Spice is a Japanese pub by the river near Café Rouge. No kids."]) == 0.25


@pytest.mark.parametrize(
    ("slot", "value", "text"),
    [
        ("eatType", "coffee shop", "a café"),
        ("eatType", "pub", "a public house"),
        ("food", "English", "serving British food"),
        ("food", "Fast food", "with burgers and fries"),
        ("priceRange", "less than £20", "where meals are under £20"),
        ("priceRange", "less than £20", "which is inexpensive"),
        ("priceRange", "£20-25", "where prices range from 20 to 25 pounds"),
        ("priceRange", "moderate", "with average prices"),
        ("priceRange", "high", "which is rather expensive"),
        ("priceRange", "more than £30", "in the price range above £30"),
        ("customer rating", "low", "with poor reviews"),
        ("customer rating", "low", "whose rating is not very good"),
        ("customer rating", "1 out of 5", "a one-star place"),
        ("customer rating", "3 out of 5", "with an average customer rating"),
        ("customer rating", "5 out of 5", "rated 5/5"),
        ("customer rating", "high", "which customers rate highly"),
        ("area", "riverside", "on the banks of the river"),
        ("area", "city centre", "in the center of town"),
        ("familyFriendly", "yes", "where kids are welcome"),
        ("familyFriendly", "no", "for adults only"),
        ("familyFriendly", "no", "not the type of place people bring their kids"),
        ("near", "Crowne Plaza Hotel", "beside the Crowne Plaza"),
        ("near", "Café Rouge", "by CAFE ROUGE"),
    ],
)
def test_values_have_many_forms(slot: str, value: str, text: str) -> None:
    mr = format_mr([("name", "Aromi"), (slot, value)])
    assert found(mr, f"Aromi is a place {text}.") == SlotErrors(2)
    assert found(mr, "Aromi is a place.").missing == (slot,)


@pytest.mark.parametrize(
    ("slot", "value", "text"),
    [
        ("priceRange", "high", "cheap, with a high rating"),
        ("priceRange", "less than £20", "and prices are £20-25"),
        ("customer rating", "low", "with low prices and a customer rating of 5 out of 5"),
        ("familyFriendly", "yes", "not for children"),
        ("familyFriendly", "no", "not only cheap but family friendly"),
        ("area", "riverside", "in the city centre"),
        ("eatType", "pub", "a coffee shop"),
        ("near", "Café Rouge", "near Burger King"),
    ],
)
def test_other_values_are_wrong(slot: str, value: str, text: str) -> None:
    assert found(format_mr([("name", "Aromi"), (slot, value)]), f"Aromi is a place {text}.").wrong == (slot,)


def test_names_say_nothing_of_other_slots() -> None:
    assert found("name[The Rice Boat], near[Café Sicilia]", "The Rice Boat is near Café Sicilia.") == SlotErrors(2)
    assert found("name[Cotto]", "Cotto is near The Golden Curry and Raja Indian Cuisine.").added == ("near",)
    assert found("name[Cotto]", "Zizzi is nice.").wrong == ("name",)
    assert found("name[Cotto]", "It is nice.").missing == ("name",)


def test_values_that_e2e_does_not_have_are_looked_for_as_they_stand() -> None:
    mr = "name[A], food[Greek], eatType[wine bar]"
    assert found(mr, "A is a wine bar with Greek food.") == SlotErrors(3)
    assert found(mr, "A is a wine bar.").missing == ("food",)


def test_other_inputs_do_not_count_and_without_any_there_is_an_error() -> None:
    assert slot_errors("a prompt", GOOD) is None
    assert slot_errors("colour[red]", GOOD) is None
    assert slot_error_statistics(["a prompt", MR], ["x", GOOD]).tolist() == [[0.0, 0.0], [0.0, 6.0]]
    with pytest.raises(DataError, match="no such thing"):
        slot_error_statistics(["a prompt"], ["x"])


def test_an_empty_output_misses_all() -> None:
    assert len(found(MR, "").missing) == 6


def test_every_slot_dropped_added_or_changed_in_plain_texts_is_noticed_and_nothing_else(e2e: Corpus) -> None:
    for style, group in enumerate(e2e.split("test")[::5]):
        slots = dict(parse_mr(group.mr))
        right = reference(slots, style % 6)
        assert found(group.mr, right).num == 0, right
        for slot in slots.keys() - {"name", "eatType"}:
            fewer = {name: value for name, value in slots.items() if name != slot}
            assert found(group.mr, reference(fewer, style % 6)).missing == (slot,)
            assert found(format_mr(fewer.items()), right).added == (slot,)
            for other in others(slot, slots[slot]):
                assert found(group.mr, reference(slots | {slot: other}, style % 6)).wrong == (slot,)


def others(slot: str, value: str) -> list[str]:
    """Values that mean something else."""
    same = [pair for pair in EQUIVALENT.get(slot, ()) if value in pair]
    return [other for other in FORMS.get(slot, {}) if other != value and not any(other in pair for pair in same)]


def test_people_leave_out_or_change_few_slots_and_tgen_fewer(e2e: Corpus, tgen: Scored) -> None:
    groups = e2e.split("test")
    people = [(group.mr, group.references[i]) for i in range(3) for group in groups if len(group.references) > i]
    assert rate(*zip(*people, strict=True)) < 0.09
    assert 0.02 < rate([group.mr for group in groups], tgen.outputs) < 0.04
