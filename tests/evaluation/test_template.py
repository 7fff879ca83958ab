from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torso.evaluation.bleu import official_bleu
from torso.evaluation.template import template

if TYPE_CHECKING:
    from torso.data.corpus import Corpus


def test_on_e2es_test_set_it_scores_0_575(e2e: Corpus) -> None:
    groups = e2e.split("test")
    assert len(groups) == 630
    bleu = official_bleu([template(group.mr) for group in groups], [group.references for group in groups])
    assert bleu == pytest.approx(0.575, abs=0.005)


@pytest.mark.parametrize(
    ("mr", "text"),
    [
        ("name[A]", "A is a restaurant."),
        ("name[A], eatType[pub], area[riverside]", "A is a pub in the riverside."),
        ("eatType[pub], familyFriendly[no], near[B]", "It is a non family friendly pub near B."),
        ("name[A], food[Thai], familyFriendly[yes]", "A is a family friendly restaurant that serves Thai food."),
        (
            "name[A], priceRange[£20-25], customer rating[5 out of 5]",
            "A is a restaurant. It has a customer rating of 5 out of 5 and a price range of £20-25.",
        ),
        ("name[A], priceRange[cheap]", "A is a restaurant. It has a cheap price range."),
    ],
)
def test_it_says_every_slot(mr: str, text: str) -> None:
    assert template(mr) == text
