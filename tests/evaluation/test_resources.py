"""What METEOR says where WordNet or Punkt is missing: one line, and not one byte from the network."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nltk
import pytest

from torso.errors import MissingResourceError
from torso.evaluation import resources
from torso.evaluation.meteor import hf_meteor

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
REMEDY = "Run `make resources`, or `python scripts/fetch_resources.py` in Torso's environment."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder that NLTK looks into, empty; whoever opens a connection fails."""
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(nltk, "download", refused)
    forget()
    yield tmp_path
    forget()


def refused(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("nothing was to be fetched")


def forget() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # NLTK's reader leaves its files to the collector
        resources.wordnet.cache_clear()
        resources.sentence_tokenizer.cache_clear()
        gc.collect()


def add_wordnet(folder: Path, version: str) -> None:
    """A dictionary without words, as far as NLTK needs it."""
    wordnet = folder / "corpora" / "wordnet"
    wordnet.mkdir(parents=True)
    (wordnet / "lexnames").write_text("00\tadj.all\t3\n")
    (wordnet / "index.sense").write_text("")
    for part in ("adj", "adv", "noun", "verb"):
        (wordnet / f"index.{part}").write_text("")
        (wordnet / f"{part}.exc").write_text("")
        (wordnet / f"data.{part}").write_text(f"  1 WordNet {version} Copyright 2006 by Princeton University.\n")


def add_punkt(folder: Path) -> Path:
    """Parameters that split at nothing special."""
    punkt = folder / "tokenizers" / "punkt_tab" / "english"
    punkt.mkdir(parents=True)
    for name in ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (punkt / name).write_text("")
    return punkt


def message(call: Any) -> str:
    with pytest.raises(MissingResourceError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400, "NLTK's page of advice"
    assert text.endswith(REMEDY)
    return text


def test_without_wordnet_it_says_so_in_one_line(folder: Path) -> None:
    add_punkt(folder)
    assert message(resources.wordnet).startswith("WordNet 3.0 is needed, which is not in NLTK's folders.")
    assert message(lambda: hf_meteor(["a"], [["a"]]))
    assert not resources.available()


def test_without_punkt_it_says_so_in_one_line(folder: Path) -> None:
    add_wordnet(folder, "3.0")
    assert message(resources.sentence_tokenizer).startswith("Punkt is needed, which is not in NLTK's folders.")
    assert message(lambda: hf_meteor(["a"], [["a"]]))
    assert not resources.available()


@pytest.mark.parametrize("version", ["3.1", "2.1"])
def test_another_wordnet_is_refused_with_its_version(folder: Path, version: str) -> None:
    add_wordnet(folder, version)
    assert f"WordNet 3.0 is needed, NLTK's folders hold {version}" in message(resources.wordnet)


@pytest.mark.parametrize(
    ("file", "content"),
    [("index.noun", "pub n two\n"), ("index.noun", "pub n 0\n"), ("verb.exc", "\n"), ("lexnames", "x")],
)
def test_a_damaged_wordnet_is_refused(folder: Path, file: str, content: str) -> None:
    add_wordnet(folder, "3.0")
    (folder / "corpora" / "wordnet" / file).write_text(content)
    assert "WordNet 3.0 is needed, which cannot be read" in message(resources.wordnet)


def test_a_wordnet_without_some_file_or_without_a_version_is_refused(folder: Path) -> None:
    add_wordnet(folder, "3.0")
    wordnet = folder / "corpora" / "wordnet"
    (wordnet / "data.adj").write_text("")
    assert "NLTK's folders hold one of no version" in message(resources.wordnet)
    (wordnet / "lexnames").unlink()
    assert "lexnames" in message(resources.wordnet)


def test_punkt_without_one_of_its_files_is_refused(folder: Path) -> None:
    (add_punkt(folder) / "collocations.tab").unlink()
    assert "Punkt is needed" in message(resources.sentence_tokenizer)


def test_once_both_are_there_it_works_without_a_network(folder: Path) -> None:
    add_wordnet(folder, "3.0")
    add_punkt(folder)
    assert resources.available()
    assert hf_meteor(["a cheap pub"], [["a cheap pub"]]) > 0.9
    assert resources.wordnet() is resources.wordnet()
