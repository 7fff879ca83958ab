from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from torso.data.corpus import SPLITS, Corpus
from torso.data.demo import DemoSizes, demo_corpus, write_csv
from torso.data.demo_grammar import SLOTS, STYLES, VALUES
from torso.data.e2e import load_e2e
from torso.data.slots import parse_mr
from torso.data.sources import load
from torso.errors import DataError


@pytest.fixture(scope="module")
def demo() -> Corpus:
    return load("demo")


def names(corpus: Corpus, split: str) -> set[str]:
    pairs = [pair for group in corpus.split(split) for pair in parse_mr(group.mr)]
    return {value for slot, value in pairs if slot in ("name", "near")}


def combinations(corpus: Corpus, split: str) -> set[tuple[tuple[str, str], ...]]:
    mrs = [parse_mr(group.mr) for group in corpus.split(split)]
    return {tuple(pair for pair in mr if pair[0] not in ("name", "near")) for mr in mrs}


def test_the_standard_set_is_the_same_on_every_machine(demo: Corpus) -> None:
    assert demo.fingerprint == "6cfc9123647e9bcaa5fb9e06f83b89969e1e09cc1ea0dfebdf07bb9cbc993bed"
    assert [len(demo.split(split)) for split in SPLITS] == [600, 40, 60]
    assert demo.fingerprint != demo_corpus(DemoSizes(seed=1)).fingerprint


def test_mrs_use_e2es_eight_slots_in_its_order_with_known_values(demo: Corpus) -> None:
    used: Counter[str] = Counter()
    for split in SPLITS:
        for group in demo.split(split):
            slots = parse_mr(group.mr)
            assert [slot for slot, _ in slots] == [slot for slot in SLOTS if slot in dict(slots)]
            assert all(value in VALUES[slot] for slot, value in slots if slot in VALUES)
            assert "name" in dict(slots)
            assert 3 <= len(slots) <= 8
            used.update(slot for slot, _ in slots)
    assert set(used) == set(SLOTS)
    assert math.prod(len(values) + 1 for values in VALUES.values()) > 10_000


def test_dev_and_test_mrs_and_their_names_are_unseen(demo: Corpus) -> None:
    for first, second in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not names(demo, first) & names(demo, second)
        assert not {g.mr for g in demo.split(first)} & {g.mr for g in demo.split(second)}
        assert not any(name in text for name in names(demo, second) for g in demo.split(first) for text in g.references)


def test_no_combination_of_the_other_values_occurs_twice(demo: Corpus) -> None:
    sets = [combinations(demo, split) for split in SPLITS]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 700


def test_each_mr_has_several_references_that_say_every_value(demo: Corpus) -> None:
    for split in SPLITS:
        for group in demo.split(split):
            assert len(group.references) == (2 if split == "train" else len(STYLES))
            assert len(set(group.references)) >= len(group.references) // 2
            for text in group.references:
                assert re.fullmatch(r"[A-Z£][^.]*\.( [A-Z][^.]*\.){0,2}", text), text
                said = [value for slot, value in parse_mr(group.mr) if slot not in ("area", "familyFriendly")]
                assert all(value in text for value in said), (group.mr, text)
                assert ("famil" in text.lower()) == ("familyFriendly" in group.mr)
                assert (" not " in text) == ("familyFriendly[no]" in group.mr)


def test_every_junction_of_two_sentences_stands_in_some_style() -> None:
    assert {(place, money) for place, money, _ in STYLES} == {(p, m) for p in range(3) for m in range(2)}
    assert {(place, children) for place, _, children in STYLES} == {(p, c) for p in range(3) for c in range(2)}
    assert {(money, children) for _, money, children in STYLES} == {(m, c) for m in range(2) for c in range(2)}


def test_written_as_csv_it_reads_back_the_same(demo: Corpus, tmp_path: Path) -> None:
    write_csv(demo, tmp_path / "csv")
    again = load_e2e(str(tmp_path / "csv"))
    assert again.fingerprint == demo.fingerprint
    assert (tmp_path / "csv" / "testset.csv").read_text().count("\n") == 61


def test_fewer_references_rotate_through_the_styles() -> None:
    corpus = demo_corpus(DemoSizes(train=100, dev=1, test=1, train_references=1))
    texts = [group.references[0] for group in corpus.split("train")]
    assert 20 < sum("there is a" in text.lower() for text in texts) < 50


@pytest.mark.parametrize(
    "sizes", [{"train": 0}, {"train": 100_000}, {"test": -1}, {"references": 7}, {"train_references": 0}]
)
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(DataError, match="were asked for"):
        DemoSizes(**sizes)
