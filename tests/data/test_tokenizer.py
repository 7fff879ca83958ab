from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from torso.data.tokenizer import END_OF_TEXT, Tokenizer
from torso.errors import DataError

TEXTS = [
    "The Vaults pub near Café Adriatic has a 5 star rating.  Prices start at £30.",
    " Blue Spice",
    "",
    "  tabs\t and\nline breaks \r\n",
    "naïve 東京 🍕 don't I'll 12345",
    "\x00\x07 control",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Path:
    return train_small(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def gpt2(shared_data: Path) -> Tokenizer:
    return Tokenizer(shared_data / "gpt2-bpe")


def test_gpt2s_own_files_give_the_ids_of_transformers(gpt2: Tokenizer, shared_data: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = shared_data / "gpt2-bpe"
    theirs = transformers.GPT2TokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        assert gpt2.encode(text) == theirs.encode(text), text
    assert (gpt2.eos_id, gpt2.vocab_size) == (50256, 50257)


def test_gpt2s_known_ids(gpt2: Tokenizer) -> None:
    assert gpt2.encode("Hello world") == [15496, 995]


def test_decoding_undoes_encoding(gpt2: Tokenizer, small: Path) -> None:
    for tokenizer in (gpt2, Tokenizer(small)):
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_many_texts_are_encoded_like_one(gpt2: Tokenizer) -> None:
    assert gpt2.encode_all(TEXTS) == [gpt2.encode(text) for text in TEXTS]


@pytest.mark.parametrize("piece", [1, 5, 40, 1 << 16])
def test_long_texts_have_the_same_ids_in_pieces(
    gpt2: Tokenizer, small: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torso.data.tokenizer.PIECE", piece)
    texts = [*TEXTS, " ".join([*TEXTS, "it 's , a\u00a0b \u2003c . d 新 e"])]
    for tokenizer in (gpt2, Tokenizer(small)):
        found = [np.frombuffer(ids, dtype="<u4").tolist() for ids in tokenizer.encode_many(texts, "<u4")]
        assert found == tokenizer.encode_all(texts)


@pytest.mark.parametrize("change", ["prefix", "normalizer", "added"])
def test_a_text_stays_whole_where_a_space_parts_no_words(small: Path, tmp_path: Path, change: str) -> None:
    document = json.loads((small / "tokenizer.json").read_text(encoding="utf-8"))
    if change == "prefix":
        document["pre_tokenizer"]["add_prefix_space"] = True
    elif change == "normalizer":
        document["normalizer"] = {"type": "Prepend", "prepend": "x"}
    else:
        token = {"id": 0, "content": "a b", "single_word": False, "lstrip": False, "rstrip": False}
        document["added_tokens"].append(token | {"normalized": False, "special": False, "id": 9999})
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    tokenizer, text = Tokenizer(tmp_path), "a b " * 20000 + "c"
    (found,) = tokenizer.encode_many([text], "<u4")
    assert np.frombuffer(found, dtype="<u4").tolist() == tokenizer.encode(text)


def test_no_text_turns_into_the_end_token(gpt2: Tokenizer, small: Path) -> None:
    for tokenizer in (gpt2, Tokenizer(small)):
        text = f"before {END_OF_TEXT} after"
        assert tokenizer.eos_id not in tokenizer.encode(text)
        assert tokenizer.eos_id not in tokenizer.encode_all([text])[0]
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode([*tokenizer.encode("done"), tokenizer.eos_id, tokenizer.eos_id]) == "done"


def test_both_file_formats_agree(gpt2: Tokenizer, shared_data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.GPT2TokenizerFast.from_pretrained(shared_data / "gpt2-bpe").save_pretrained(tmp_path)
    whole = Tokenizer(tmp_path)
    assert whole.encode_all(TEXTS) == gpt2.encode_all(TEXTS)
    assert (whole.eos_id, whole.vocab_size) == (gpt2.eos_id, gpt2.vocab_size)


def test_the_fingerprint_tells_tokenizers_apart(tmp_path: Path, train_small: Callable[..., Path]) -> None:
    first = Tokenizer(train_small(tmp_path / "a"))
    same = Tokenizer(train_small(tmp_path / "b"))
    config = json.loads((tmp_path / "b" / "tokenizer.json").read_text())
    config["model"]["merges"].pop()
    (tmp_path / "b" / "tokenizer.json").write_text(json.dumps(config))
    assert first.fingerprint == same.fingerprint != Tokenizer(tmp_path / "b").fingerprint


def test_the_end_token_may_be_named_by_its_config(tmp_path: Path, train_small: Callable[..., Path]) -> None:
    folder = train_small(tmp_path / "a", end="</s>")
    with pytest.raises(DataError, match=r"has no end token '<\|endoftext\|>'"):
        Tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert Tokenizer(folder).eos_id == 0
    (folder / "tokenizer_config.json").write_text('{"eos_token": ')
    with pytest.raises(DataError, match=r"tokenizer_config.json: not JSON .*line 1"):
        Tokenizer(folder)


def test_missing_and_broken_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no tokenizer. Expected tokenizer.json, or vocab.json and merges.txt"):
        Tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}x")
    (tmp_path / "merges.txt").write_text("a b")
    with pytest.raises(DataError, match="are not a BPE vocabulary"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json is not a tokenizer"):
        Tokenizer(tmp_path)
