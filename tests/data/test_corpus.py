from __future__ import annotations

import pytest

from torso.data.corpus import Corpus, Group, group_pairs
from torso.data.sources import load
from torso.errors import DataError


def test_groups_stand_in_order_of_first_appearance() -> None:
    rows = [("b", "B", "1"), ("a", "A", "2"), ("b", "B", "3")]
    assert group_pairs(rows) == (Group("b", "B", ("1", "3")), Group("a", "A", ("2",)))


def test_the_fingerprint_follows_the_content_and_not_the_name() -> None:
    splits = {"train": (Group("a", "A", ("1", "2")),)}
    other = {"train": (Group("a", "A", ("1",)), Group("a", "A", ("2",)))}
    assert Corpus("x", splits).fingerprint == Corpus("y", splits).fingerprint
    assert Corpus("x", splits).fingerprint != Corpus("x", other).fingerprint
    assert Corpus("x", splits).fingerprint != Corpus("x", {"dev": splits["train"]}).fingerprint


def test_an_absent_or_empty_split_is_a_clear_error() -> None:
    corpus = Corpus("mine", {"train": (Group("a", "A", ("1",)),), "dev": ()})
    for split in ("dev", "test"):
        with pytest.raises(DataError, match=rf"mine has no {split} examples.*train"):
            corpus.split(split)
    with pytest.raises(DataError, match="no split named 'validation'"):
        corpus.split("validation")


@pytest.mark.parametrize("spec", ["", "e2f", "demo:x", "jsonl", "jsonl:", "e2e:", "news:", "/some/path.csv"])
def test_an_unknown_data_set_is_a_clear_error(spec: str) -> None:
    with pytest.raises(DataError, match=r"is not known. Expected demo, e2e, e2e:PATH"):
        load(spec)
