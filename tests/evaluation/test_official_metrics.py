"""NIST, ROUGE-L, CIDEr, segments and PTB tokens against the official scorer's values."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torso.data.corpus import Corpus
from torso.evaluation.metrics import METRICS, Scores, Texts, measure, segment_table, signature, text_form
from torso.evaluation.ptb import ptb_tokens

if TYPE_CHECKING:
    from tests.evaluation.conftest import Scored

NAMES = {
    "official_bleu": ("BLEU_py", "BLEU"),
    "official_nist": ("NIST_py", "NIST"),
    "official_rouge_l": ("ROUGE_L", "ROUGE_L"),
    "official_cider": ("CIDEr", "CIDEr"),
}
SLOW_ONES = ("official_meteor", "hf_meteor")
TOKENS_OF_THE_TEST_SET = "0605001c85b0a4af027d84468fbdc7353c5132891d83d90e1eb89c846cfb5fc9"
"""SHA-256 of CoreNLP 3.4.1's tokens, without the punctuation that is dropped: all references, then TGen's outputs."""


@pytest.fixture(scope="module", params=["ten", "tgen"])
def scored(request: pytest.FixtureRequest) -> Scored:
    found: Scored = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def scores(scored: Scored) -> Scores:
    return measure(Texts(outputs=scored.outputs, references=scored.references), SLOW_ONES)


def values(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    found = measure(Texts(outputs=outputs, references=references), ["official_meteor"])
    return {one.metric.name: one.value for one in found.measured}


@pytest.mark.parametrize("name", NAMES)
def test_corpora_have_the_official_values(scored: Scored, scores: Scores, name: str) -> None:
    [one] = [one for one in scores.measured if one.metric.name == name]
    assert one.value == pytest.approx(scored.official["corpus"][NAMES[name][0]], abs=1e-9)


def test_segments_have_the_official_values(scored: Scored, scores: Scores) -> None:
    table = segment_table(scores)
    for name, key in [*((n, k) for n, (_, k) in NAMES.items()), ("official_sentence_bleu", "sentBLEU")]:
        expected = [segment[key] for segment in scored.official["segments"]]
        assert table[name] == pytest.approx(expected, abs=1e-9), name


def test_the_listed_texts_have_the_listed_tokens(shared_data: Path) -> None:
    cases = json.loads((shared_data / "e2e-metrics" / "ptb_tokenizer_cases.json").read_text(encoding="utf-8"))
    assert [" ".join(ptb_tokens(text)) for text, _ in cases] == [tokens for _, tokens in cases]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [  # as CoreNLP 3.4.1 gives them
        ("Good food.It is cheap", "good food.it is cheap"),
        ("café rouge.that provides, PUB.IT", "café rouge.that provides pub.it"),
        ("price!range what?no Wow!! hello...", "price!range what?no wow !! hello"),
        ("family-friendly.It kid.family-friendly", "family-friendly it kid.family-friendly"),
        ("3.5.It £20.It riverside.£20", "3.5 it # 20 it riverside # 20"),
        ("#hashtag # tag #1 a#b", "#hashtag # tag # 1 a #b"),
        ("rated:5 out :3 :5/5 a:b ;) :)", "rated :5 out :3 :5 / 5 a b ;-rrb- :-rrb-"),
        ("5/5customer 5/5-star 24/7open 3/5and.", "5/5customer 5/5-star 24/7open 3/5and"),
        ("p.m.and 5 p.m. 5p.m. U.S.A. e.g.indian", "p.m.and 5 p.m. 5p m. u.s.a. e.g.indian"),
        ("plan b. The a. restaurant", "plan b the a. restaurant"),
        ("co.Uk etc.and Mr.Smith No.5 no.five", "co.uk etc.and mr.smith no. 5 no.five"),
    ],
)
def test_text_that_was_put_together_badly_has_the_tokens_of_corenlp(text: str, tokens: str) -> None:
    assert " ".join(ptb_tokens(text)) == tokens


def test_long_runs_of_letters_and_signs_take_no_longer_than_they_should() -> None:
    for unit in ("a", "a-", "a.", "a!", "5/", "'", "n't", "d'", "<a", "a,", "(", "1.", "_"):
        started = time.perf_counter()
        assert ptb_tokens(unit * 3000) is not None
        assert time.perf_counter() - started < 2.0, unit


def test_the_whole_test_set_has_the_tokens_of_corenlp(e2e: Corpus, tgen: Scored) -> None:
    texts = [*(r for group in e2e.split("test") for r in group.references), *tgen.outputs]
    assert len(texts) == 5323
    tokens = "\n".join(" ".join(ptb_tokens(text)) for text in texts)
    assert hashlib.sha256(tokens.encode()).hexdigest() == TOKENS_OF_THE_TEST_SET


def test_empty_and_one_word_outputs_have_defined_values() -> None:
    assert set(values(["", ""], [["a pub near the river"], ["a pub"]]).values()) == {0.0}
    found = values(["", "pub"], [["a pub near the river"], ["pub"]])
    assert found["official_bleu"] == found["hf_bleu"] == 0.0
    assert found["official_rouge_l"] == 0.5
    assert all(0.0 <= value < 10.0 for value in found.values())


def test_no_segments_and_references_of_punctuation_break_nothing() -> None:
    assert set(values([], []).values()) == {0.0}
    assert values(["a pub .", "!"], [["..."], ["!"]])["official_rouge_l"] == 0.0


def test_one_segment_alone_has_no_cider() -> None:
    assert values(["a pub near the river"], [["a pub near the river"]])["official_cider"] == 0.0


def test_what_has_no_inputs_has_no_slot_errors_and_is_told_why() -> None:
    found = measure(Texts(outputs=["a"], references=[["b"]]), SLOW_ONES)
    assert found.not_computed == {
        "slot_error_rate": "slot errors need E2E's meaning representations, and no inputs are given"
    }
    other = measure(Texts(outputs=["a"], references=[["b"]], mrs=["a prompt"]), SLOW_ONES)
    assert "the inputs are no such thing" in other.not_computed["slot_error_rate"]


def test_signatures_name_definition_case_tokens_text_and_number_of_references() -> None:
    texts = Texts(outputs=["A pub , cheap ."], references=[["A pub, cheap.", "A cheap pub."]])
    by_name = {metric.name: signature(metric, texts) for metric in METRICS}
    assert len(set(by_name.values())) == len(METRICS)
    assert by_name["official_bleu"].startswith(
        "bleu|e2e-official|tok:13a|case:lower|reflen:closest|smooth:none|text:outputs-tokenised+references-raw|refs:2|"
    )
    assert "1.5-java" in by_name["official_meteor"]
    assert "nltk" in by_name["hf_meteor"]


@pytest.mark.parametrize(
    ("text", "form"),
    [("It is a pub.", "raw"), ("It is a pub .", "tokenised"), ("It is , er , a pub.", "tokenised"), ("a pub", "raw")],
)
def test_the_form_of_a_text_shows_in_its_punctuation(text: str, form: str) -> None:
    assert text_form([text]) == form


def test_inputs_of_another_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 outputs, but 2 inputs"):
        Texts(outputs=["a"], references=[["b"]], mrs=["c", "d"])
