"""`torso prepare news`, and training on what it made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Refuse

from torso.cli.main import main

HEADER = ",id,title,publication,author,date,year,month,url,content"


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("articles") / "articles.csv"
    rows = [f'{n},{n},T,P,,2016-01-31,2016.0,1.0,,"The pub {n} is {"very " * (n % 9)}near"' for n in range(40)]
    path.write_text("\n".join([HEADER, *rows, "1,2,3", rows[0]]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def prepared(articles: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("news") / "data"
    words = [
        "--out",
        str(out),
        "--model",
        str(tiny_model),
        "--block-size",
        "16",
        "--dev-share",
        "0.2",
        "--workers",
        "1",
    ]
    assert main(["prepare", "news", str(articles), *words]) == 0
    return out


def test_what_became_of_the_rows_is_printed_and_kept(
    articles: Path, prepared: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["--model", str(tiny_model), "--block-size", "16", "--dev-share", "0.2"]
    assert main(["prepare", "news", str(articles), "--out", str(prepared), *again]) == 0
    printed = capsys.readouterr().out
    assert printed == (prepared / "report.txt").read_text(encoding="utf-8")
    assert "42 rows: 40 used, 2 not" in printed
    assert "1 wrong width (articles.csv, row 41)" in printed
    assert "1 duplicate (articles.csv, row 42)" in printed


def train(model: Path, data: Path, run: Path, *words: str) -> None:
    settings = ("--model", str(model), "--data", f"news:{data}", "--global-batch-size", "8", "--micro-batch-size", "4")
    assert main(["train", *settings, "--threads", "1", "--run-dir", str(run), *words]) == 0


def test_training_and_evaluation_read_the_blocks(tiny_model: Path, prepared: Path, tmp_path: Path) -> None:
    train(tiny_model, prepared, tmp_path / "run", "--adapter", "none", "--evaluate", "dev", "--epochs", "2")
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [one for one in log if one["kind"] == "step"]
    manifest = json.loads((prepared / "manifest.json").read_text())
    tokens = manifest["splits"]["train"]["tokens"]
    assert sum(one["real_tokens"] for one in steps) == 2 * tokens or tokens % 16 == 1
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert [one["scores"] for one in log if one["kind"] == "evaluation"][-1] == {}


def test_another_tokenizer_than_the_data_was_prepared_with_is_refused(
    prepared: Path, refuse: Refuse, tmp_path: Path
) -> None:
    line = refuse("train", "--model", "mini", "--data", f"news:{prepared}", "--run-dir", tmp_path / "run")
    assert re.search(
        r"was prepared with another tokenizer, of \d+ tokens \(\w{12}\), than --model mini has, of 4,096 \(\w{12}\)\."
        " Prepare the articles again with --model mini, or train the model",
        line,
    )


def test_blocks_longer_than_the_models_positions_are_refused(
    articles: Path, tiny_model: Path, refuse: Refuse, tmp_path: Path
) -> None:
    words = ["--model", str(tiny_model), "--block-size", "65", "--workers", "1"]
    assert main(["prepare", "news", str(articles), "--out", str(tmp_path / "data"), *words]) == 0
    line = refuse("train", "--model", tiny_model, "--data", f"news:{tmp_path / 'data'}", "--run-dir", tmp_path / "run")
    assert "blocks have 65 tokens, at most 64 fit" in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["moose", "x.csv"], "moose is not what can be prepared"),
        (["news", "missing-*.csv"], "there is no file missing-*.csv"),
        (["news"], "no file of articles is given"),
        (["news", "ARTICLES", "--block-size", "1"], "block_size is 1"),
        (["news", "ARTICLES", "--dev-share", "1"], "dev_share is 1.0"),
        (["news", "ARTICLES", "--vocab-size", "20"], "vocab_size is 20"),
        (["news", "ARTICLES", "--vocab-size", "300", "--tokenizer", "x"], "vocab_size and tokenizer are both given"),
        (["news", "ARTICLES", "--tokenizer", "nowhere"], "holds no tokenizer"),
        (["news", "ARTICLES", "--workers", "0"], "workers 0"),
    ],
)
def test_a_wrong_request_ends_with_one_line(
    words: list[str], expected: str, articles: Path, refuse: Refuse, tmp_path: Path
) -> None:
    line = refuse(
        "prepare", *(str(articles) if word == "ARTICLES" else word for word in words), "--out", tmp_path / "o"
    )
    assert expected in line
