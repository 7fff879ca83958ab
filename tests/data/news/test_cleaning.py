"""What is taken out of a text, and what is not."""

from __future__ import annotations

import unicodedata

import pytest

from torso.data.news.cleaning import clean
from torso.data.news.normalising import Normalising, normaliser
from torso.evaluation import resources


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>One.</p><p>Two.</p>", "One. Two."),
        ("a<br/>b<BR>c", "a b c"),
        ("wo<b>rd</b>s <a href='x>y'>link</a>", "words y'>link"),
        ("x<script>var a = '<p>';</script>y<style type='a'>p {}</style>z", "x y z"),
        ("x<!-- hidden\n -->y", "x y"),
        ("x <script>never closed", "x"),
        ("1 < 2 and 3 > 2, a<b", "1 < 2 and 3 > 2, a<b"),
        ("Tom &amp; Jerry&#39;s &lt;b&gt; &eacute; &unknown;", "Tom & Jerry's <b> é &unknown;"),
        ("a\x07b\x00c\x7fd\u200be\ufefff\u00adg\u2060h", "abcdefgh"),
        ("  a \t b\r\n\r\nc\u00a0d\u2028e  ", "a b c d e"),
        ("👨\u200d👩\u200d👧 a\u200db", "👨\u200d👩\u200d👧 ab"),
        (" \n\u200b ", ""),
    ],
)
def test_markup_and_what_cannot_be_seen_is_taken_out(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_cleaning_a_clean_text_changes_nothing() -> None:
    text = clean("<p>Café &amp; naïve 😀\u200d </p> won’t — £30")
    assert clean(text) == text


@pytest.mark.parametrize("bad", ["<" * 50_000, "<p " * 20_000, "&" * 50_000, "<!--" * 20_000, "<script>" * 5_000])
def test_what_looks_like_markup_without_end_takes_no_time(bad: str) -> None:
    clean(bad)  # minutes, where a search starts anew at each place


def test_nfc_is_the_normal_form_by_default() -> None:
    parted = unicodedata.normalize("NFD", "Café ﬁn")
    assert normaliser(Normalising())(parted) == "Café ﬁn"
    assert normaliser(Normalising(unicode="NFKC"))(parted) == "Café fin"
    assert normaliser(Normalising(unicode="none"))(parted) == parted


def test_lower_case_and_stems_are_given_when_asked_for() -> None:
    assert normaliser(Normalising(lower_case=True))("The NEWS") == "the news"
    assert normaliser(Normalising(words="stem"))("Running ponies, 3rd.") == "Run poni, 3rd."


@pytest.mark.skipif(not resources.available(), reason="WordNet is not there: run `make resources`")
def test_lemmas_are_given_when_asked_for() -> None:
    assert normaliser(Normalising(words="lemmatise"))("The geese flew, 3rd.") == "The goose fly, 3rd."
