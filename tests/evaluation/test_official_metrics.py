"""NIST, ROUGE-L, CIDEr, METEOR and PTB tokens against the official scorer's values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.evaluation.conftest import Scored

from torso.errors import MissingResourceError
from torso.evaluation.metrics import Metrics, measure
from torso.evaluation.official_meteor import meteor_command
from torso.evaluation.ptb import ptb_tokens
from torso.evaluation.slot_errors import slot_error_rate, slot_errors

NAMES = {
    "official_bleu": ("BLEU_py", "BLEU"),
    "official_nist": ("NIST_py", "NIST"),
    "official_rouge_l": ("ROUGE_L", "ROUGE_L"),
    "official_cider": ("CIDEr", "CIDEr"),
}


@pytest.fixture(scope="module", params=["ten", "tgen"])
def scored(request: pytest.FixtureRequest) -> Scored:
    found: Scored = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def metrics(scored: Scored) -> Metrics:
    return measure(scored.outputs, scored.references)


@pytest.mark.parametrize("name", NAMES)
def test_corpus_and_segments_have_the_official_values(scored: Scored, metrics: Metrics, name: str) -> None:
    of_corpus, of_segment = NAMES[name]
    [metric] = [metric for metric in metrics.computed if metric.name == name]
    assert metric.value == pytest.approx(scored.official["corpus"][of_corpus], abs=1e-6)
    expected = [segment[of_segment] for segment in scored.official["segments"]]
    assert list(metric.segments) == pytest.approx(expected, abs=1e-6)


def test_official_meteor_has_its_value_where_its_program_is(scored: Scored, metrics: Metrics) -> None:
    try:
        meteor_command()
    except MissingResourceError as error:
        assert "official_meteor" in metrics.skipped
        pytest.skip(str(error))
    assert metrics.values["official_meteor"] == pytest.approx(scored.official["corpus"]["METEOR"], abs=1e-4)


def test_the_listed_texts_have_the_listed_tokens(shared_data: Path) -> None:
    cases = json.loads((shared_data / "e2e-metrics" / "ptb_tokenizer_cases.json").read_text(encoding="utf-8"))
    assert [" ".join(ptb_tokens(text)) for text, _ in cases] == [tokens for _, tokens in cases]


def test_empty_and_one_word_outputs_have_defined_values() -> None:
    values = measure(["", "pub"], [["a pub near the river"], ["a pub near the river", "pub"]]).values
    assert values["official_bleu"] == values["hf_bleu"] == 0.0
    assert all(0.0 <= value < 10.0 for value in values.values())
    assert all(value == 0.0 for name, value in measure([""], [["a b c d e"]]).values.items() if name != "hf_meteor")


def test_slots_are_found_missing_wrong_and_added() -> None:
    mr = "name[Blue Spice], eatType[pub], food[Chinese], priceRange[less than £20], near[Café Rouge]"
    good = "Blue Spice is a cheap Chinese pub near Café Rouge."
    errors = slot_errors(mr, good)
    assert errors is not None
    assert errors.num == 0
    bad = slot_errors(mr, "Blue Spice is a Japanese pub by the river near Café Rouge.")
    assert bad is not None
    assert (bad.missing, bad.wrong, bad.added) == (("priceRange",), ("food",), ("area",))
    assert slot_error_rate([errors, bad]) == 0.3
    assert slot_errors("a prompt", good) is None
