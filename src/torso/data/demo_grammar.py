"""The demo set's words: slots with their values, invented names, and a grammar of references.

A reference is up to three sentences: what and where (name, eatType, food, area, near), money and opinion
(priceRange, customer rating), children (familyFriendly). The first has three forms, the others two. The six
styles combine them so that every pair of forms that can follow one another occurs: whichever forms a model
mixes, each junction of two sentences stands in some reference.
"""

from __future__ import annotations

from collections.abc import Mapping

SLOTS = ("name", "eatType", "food", "priceRange", "customer rating", "area", "familyFriendly", "near")

VALUES: dict[str, tuple[str, ...]] = {
    "eatType": ("coffee shop", "pub", "restaurant", "wine bar"),
    "food": ("Chinese", "English", "French", "Greek", "Indian", "Italian", "Japanese"),
    "priceRange": ("cheap", "moderate", "high", "less than £20", "£20-25", "more than £30"),
    "customer rating": ("low", "average", "high", "1 out of 5", "3 out of 5", "5 out of 5"),
    "area": ("city centre", "riverside"),
    "familyFriendly": ("yes", "no"),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Short, common words: any byte-level vocabulary spells them in few tokens, so that a name can be copied.
NAME_FIRST = _words(
    "Amber Bright Broad Brown Clear Cold Copper Dark Deep East Fair Fine First Five Four Full Gold Good"
    " Great Half Hidden Holy Iron Kind Last Late Long Lost Main New Nine Noon North Old Proud Pure Rare Real"
    " Red Rich Round Second Seven Short Six Soft South Still Tall Ten Third Three True Upper Warm West White"
    " Wide Wild Wise"
)
NAME_SECOND = _words(
    "Arrow Ash Bay Bear Bell Bird Bread Cave Cloud Coast Court Cross Crow Crown Deer Door Dove Duck Earth"
    " Farm Fern Field Fire Fish Fort Friend Gate Goose Hall Hand Heart Heath Herb Hill Home Horn House"
    " Island Key King Lake Lamb Lamp Land Lane Light Lion Mill Night Oak Ocean Park Path Pine Pool Port"
    " Prince Rain Ring Rock Rose Sail Sand Seed Shell Ship Shore Song Star Station Stone Storm Sun Sword"
    " Table Tent Tower Tree Vine Wall Well Whale Wind Wing Wood World Yard"
)

# (form of the first sentence, of the second, of the third)
STYLES = ((0, 0, 0), (1, 0, 1), (2, 0, 0), (0, 1, 1), (1, 1, 0), (2, 1, 1))

_AREAS = {
    "city centre": ("in the city centre", "in the centre of the city", "In the city centre"),
    "riverside": ("by the river", "in the riverside area", "By the river"),
}
_CHILDREN = {
    "yes": ("It is family friendly.", "Families with children are welcome."),
    "no": ("It is not family friendly.", "Families with children are not welcome."),
}


def reference(slots: Mapping[str, str], style: int) -> str:
    """The reference of an MR's slots in one of the six styles."""
    place, money, children = STYLES[style]
    sentences = [
        (_name_first, _food_first, _place_first)[place](slots),
        (_price_first, _rating_first)[money](slots),
        _CHILDREN[slots["familyFriendly"]][children] if "familyFriendly" in slots else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _name_first(slots: Mapping[str, str]) -> str:
    kind = slots.get("eatType", "place")
    parts = [slots["name"], "is", _with_article(kind)]
    parts += ["serving", slots["food"], "food"] if "food" in slots else []
    parts += [_AREAS[slots["area"]][0]] if "area" in slots else []
    parts += ["near", slots["near"]] if "near" in slots else []
    return " ".join(parts) + "."


def _food_first(slots: Mapping[str, str]) -> str:
    kind = " ".join(filter(None, (slots.get("food"), slots.get("eatType", "place"))))
    parts = [slots["name"], "is", _with_article(kind)]
    parts += ["close to", slots["near"]] if "near" in slots else []
    parts += [_AREAS[slots["area"]][1]] if "area" in slots else []
    return " ".join(parts) + "."


def _place_first(slots: Mapping[str, str]) -> str:
    area, near = slots.get("area"), slots.get("near")
    opening = [_AREAS[area][2]] if area else []
    opening += [f"{'near' if area else 'Near'} {near}"] if near else []
    there = f"{' '.join(opening)} there is" if opening else "There is"
    what = f"{there} {_with_article(slots.get('eatType', 'place'))} called {slots['name']}"
    return f"{what} that serves {slots['food']} food." if "food" in slots else f"{what}."


def _price_first(slots: Mapping[str, str]) -> str:
    price, rating = slots.get("priceRange"), slots.get("customer rating")
    clauses = [f"its prices are {price}"] if price else []
    clauses += [f"its customer rating is {rating}"] if rating else []
    return _sentence(clauses)


def _rating_first(slots: Mapping[str, str]) -> str:
    price, rating = slots.get("priceRange"), slots.get("customer rating")
    clauses = [f"customers rate it as {rating}"] if rating else []
    clauses += [f"the price range is {price}"] if price else []
    return _sentence(clauses)


def _sentence(clauses: list[str]) -> str:
    text = " and ".join(clauses)
    return text[:1].upper() + text[1:] + "." if text else ""


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOaeio' else 'a'} {noun}"
