"""A template for E2E's meaning representations: the score that a model must beat to have learnt more than the slots."""

from __future__ import annotations

from torso.data.slots import parse_mr


def template(mr: str) -> str:
    """One or two sentences that say every slot of an E2E meaning representation; DataError when it is malformed."""
    slots = dict(parse_mr(mr))
    friendly = {"yes": "family friendly ", "no": "non family friendly "}.get(slots.get("familyFriendly", ""), "")
    text = f"{slots.get('name', 'It')} is a {friendly}{slots.get('eatType', 'restaurant')}"
    text += f" that serves {slots['food']} food" if "food" in slots else ""
    text += f" in the {slots['area']}" if "area" in slots else ""
    text += f" near {slots['near']}" if "near" in slots else ""
    said = []
    if "customer rating" in slots:
        said.append(f"a customer rating of {slots['customer rating']}")
    if "priceRange" in slots:
        price = slots["priceRange"]
        said.append(f"a price range of {price}" if "£" in price else f"a {price} price range")
    return f"{text}. It has {' and '.join(said)}." if said else f"{text}."
