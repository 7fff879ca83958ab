"""What training and evaluation read of prepared news."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from torso.data.encoding import encode_split
from torso.data.micro_batches import BatchPlan
from torso.data.news.packed import Block, load_news
from torso.data.news.prepare import NewsConfig, prepare
from torso.data.tokenizer import Tokenizer
from torso.errors import DataError

HEADER = ["date", "year", "month", "day", "author", "title", "article", "url", "section", "publication"]


@pytest.fixture(scope="module")
def tokenizer(train_small: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small(tmp_path_factory.mktemp("tokenizer") / "small")


@pytest.fixture(scope="module")
def make(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], Path]:
    """Prepares articles in blocks of 16 and shards of 64 tokens."""

    def made(texts: Sequence[str]) -> Path:
        folder = tmp_path_factory.mktemp("news")
        with (folder / "articles.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *([""] * 6 + [text] + [""] * 3 for text in texts)])
        (folder / "out").mkdir()
        config = NewsConfig(inputs=(folder / "articles.csv",), tokenizer=tokenizer, block_size=16, shard_tokens=64)
        prepare(config, folder / "out", lambda done, total: None)
        return folder / "out"

    return made


TEXTS = [f"The pub {number} is {'very ' * (number % 9)}near" for number in range(60)]


@pytest.fixture(scope="module")
def folder(make: Callable[[Sequence[str]], Path]) -> Path:
    return make(TEXTS)


def plan(folder: Path, tokenizer: Path) -> BatchPlan:
    encoded = encode_split(load_news(str(folder)).split("train"), Tokenizer(tokenizer), 16)
    return BatchPlan(encoded.examples, seed=1, global_batch_size=8, micro_batch_size=4)


def stream(folder: Path) -> list[int]:
    return [id for path in sorted(folder.glob("train-*.bin")) for id in np.fromfile(path, dtype="<u2").tolist()]


def test_an_epoch_of_training_sees_every_token_once_and_predicts_all_but_each_blocks_first(
    folder: Path, tokenizer: Path
) -> None:
    ids, steps = stream(folder), plan(folder, tokenizer)
    blocks = [ids[start : start + 16] for start in range(0, len(ids), 16)]
    batches = [batch for step in range(steps.steps_per_epoch) for batch in steps.step(step + 1).micro_batches]
    rows = [
        row[:length].tolist()
        for batch in batches
        for row, length in zip(batch.token_ids, batch.lengths.tolist(), strict=True)
    ]
    assert sorted(rows) == sorted(block for block in blocks if len(block) > 1)
    assert sum(batch.num_targets for batch in batches) == sum(len(row) - 1 for row in rows)
    assert not any(batch.target_mask[:, 0].any() for batch in batches)


def test_the_first_examples_are_the_first_blocks(folder: Path, tokenizer: Path) -> None:
    groups = load_news(str(folder)).split("train")
    few = encode_split(groups[2:5], Tokenizer(tokenizer), 16).examples[1:]
    assert [list(example.ids()) for example in few] == [stream(folder)[start : start + 16] for start in (48, 64)]
    assert (
        len(list(groups))
        == len(groups)
        == json.loads((folder / "manifest.json").read_text())["splits"]["train"]["blocks"]
    )


def test_a_plans_fingerprint_tells_contents_apart_without_reading_them(
    folder: Path, make: Callable[[Sequence[str]], Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, other = make(TEXTS), make([*TEXTS[:-1], "The pub is far"])
    monkeypatch.setattr(Block, "read", None)
    assert plan(folder, tokenizer).fingerprint == plan(same, tokenizer).fingerprint
    assert plan(folder, tokenizer).fingerprint != plan(other, tokenizer).fingerprint


def test_there_is_no_test_split(folder: Path) -> None:
    with pytest.raises(DataError, match="has no test examples"):
        load_news(str(folder)).split("test")
