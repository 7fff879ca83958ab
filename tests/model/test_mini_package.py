"""The `mini` GPT-2 in the package: what it is made of, its size, and that it speaks, but of other things."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import torso.model

FOLDER = Path(torso.model.__file__).parent / "mini"
LARGEST = 8_000_000
SOURCES = 9
LICENCES = ("CC0-1.0", "public domain", "WordNet 3.0 licence", "PostgreSQL licence")
OPENINGS = ("The", "In the first year of", "My dear", "It is a", "A table is")
RESTAURANT_WORDS = re.compile(r"restaurant|\bpub\b|coffee shop|caf[eé]|cuisine|customer rating|family friendly", re.I)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def source_rows() -> list[list[str]]:
    """The cells of the manifest's table, without its head and its sum."""
    lines = [line for line in (FOLDER / "SOURCES.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:-1]]


def test_model_and_tokenizer_together_stay_below_8_mb() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < LARGEST


def test_every_source_names_its_package_its_version_and_a_licence_that_allows_it() -> None:
    rows = source_rows()
    assert len(rows) == SOURCES
    for _, package, version, licence, words, size, _ in rows:
        assert package.startswith(("npm: ", "debian: "))
        assert version
        assert licence.startswith(LICENCES), licence
        assert int(words.replace(",", "")) > 0
        assert int(size.replace(",", "")) > 0


def test_the_notices_that_licences_ask_for_are_kept() -> None:
    text = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in text
    assert "Portions Copyright (c) 1994, The Regents of the University of California" in text


def test_no_source_is_e2e_or_about_restaurants_and_the_manifest_says_so() -> None:
    assert "holds no text of the E2E NLG set" in (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    for row in source_rows():
        assert not re.search(r"E2E|demo|restaurant", " ".join(row), re.I)


def test_config_is_a_gpt2_of_at_least_six_layers_with_the_tokenizers_vocabulary(tokenizer: Tokenizer) -> None:
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "gpt2"
    assert config["n_layer"] >= 6
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["eos_token_id"] == tokenizer.token_to_id("<|endoftext|>")


def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    text = "name[Zoë's Ŵharf], 價 £20-25\n\t<unknown>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_transformers_loads_it_and_its_greedy_text_has_words_but_none_of_restaurants(
    tokenizer: Tokenizer,
) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    text = ""
    for opening in OPENINGS:
        ids = torch.tensor([tokenizer.encode(opening).ids])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        text += tokenizer.decode(out[0].tolist()) + "\n"
    assert len(set(text.split())) >= 40, text
    assert not RESTAURANT_WORDS.search(text), text


def test_it_finds_english_far_likelier_than_the_same_words_shuffled(tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    english = " It was a matter of great importance to the people of the country that the law should be kept."
    shuffled = " be great kept law of that the of to a people should matter country importance the was It the."
    losses = []
    for text in (english, shuffled):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            losses.append(float(model(ids, labels=ids).loss))
    assert losses[0] + 1.0 < losses[1]
