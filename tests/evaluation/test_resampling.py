from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from torso.evaluation import resampling
from torso.evaluation.bleu import official_bleu
from torso.evaluation.metrics import Measured, Texts, measure
from torso.evaluation.resampling import difference_intervals, intervals, p_values

CHEAP = ("official_meteor", "hf_meteor", "slot_error_rate", "official_nist", "official_cider")
REFERENCES = [["A is a cheap pub near the river.", "Near the river there is a cheap pub, A."]] * 4 + [
    ["B is an expensive place in the city centre."],
    ["C serves English food to families."],
    ["D is rated 5 out of 5 by its customers."],
    ["E is a coffee shop, not a pub."],
]
GOOD = [references[0] for references in REFERENCES]
POOR = [*GOOD[:2], *(f"{text.split()[0]} is a place." for text in GOOD[2:])]


def measured(outputs: Sequence[str], *names: str) -> list[Measured]:
    found = measure(Texts(outputs=outputs, references=REFERENCES), CHEAP).measured
    return [one for one in found if not names or one.metric.name in names]


def test_a_resample_has_the_value_that_its_texts_have() -> None:
    [bleu] = measured(POOR, "official_bleu")
    picked = [0, 0, 3, 7, 7, 7, 2, 5]
    again = official_bleu([POOR[i] for i in picked], [REFERENCES[i] for i in picked])
    assert float(bleu.metric.of(bleu.statistics[picked].sum(axis=0))) == pytest.approx(again, abs=1e-12)


def test_intervals_hold_the_value_and_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(POOR)
    first = intervals(found, 500, seed=1)
    for one, (low, high) in zip(found, first, strict=True):
        assert low < one.value < high
    monkeypatch.setattr(resampling, "_BLOCK", 17)
    assert (intervals(found, 500, seed=1) == first).all()
    assert (intervals(found, 500, seed=2) != first).any()


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    [rouge] = measured(POOR, "official_rouge_l")
    values = np.array(rouge.segments())
    half = 1.96 * values.std() / len(values) ** 0.5
    low, high = intervals([rouge], 20_000, seed=0)[0]
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)


def test_the_p_value_is_that_of_all_exchanges_of_outputs() -> None:
    ours, theirs = measured(GOOD, "official_rouge_l"), measured(POOR, "official_rouge_l")
    gaps = np.array(theirs[0].segments()) - np.array(ours[0].segments())
    sums = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in itertools.product((1, -1), repeat=8)]
    exact = np.mean([total >= abs(gaps.sum()) - 1e-12 for total in sums])
    assert p_values(ours, theirs, seed=3) == [pytest.approx(exact, abs=0.01)]


def test_equal_outputs_do_not_differ_and_order_does_not_matter() -> None:
    same = measured(GOOD)
    assert p_values(same, measured(GOOD), seed=0) == [1.0] * len(same)
    one, other = p_values(same, measured(POOR), seed=0), p_values(measured(POOR), same, seed=0)
    assert one == pytest.approx(other, abs=0.02)
    assert max(one) < 0.05


def test_the_interval_of_a_difference_is_on_the_same_resamples() -> None:
    same = measured(POOR)
    assert (difference_intervals(same, measured(POOR), 200, seed=0) == 0.0).all()
    assert (difference_intervals(measured(GOOD), same, 200, seed=0)[:, 1] < 0.0).all()
