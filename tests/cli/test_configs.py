"""Every settings file in the tree: what its header tells people to type is understood, and it trains."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from torso.cli.compare import CompareArguments
from torso.cli.demo import SETTINGS as DEMO_SETTINGS
from torso.cli.main import COMMANDS, main
from torso.cli.parsing import parse, parse_both, take_option
from torso.cli.serve import ServeArguments, parse_layers
from torso.config import RunConfig

ROOT = Path(__file__).parents[2]
COMPARED = [ROOT / "configs/news-compare.toml"]
FILES = sorted(set(ROOT.glob("configs/*.toml")) - set(COMPARED))
SMALL = ("--strategy", "single", "--clients", "1", "--max-examples", "32", "--epochs", "1", "--evaluate", "none")


def commands(path: Path, name: str) -> list[list[str]]:
    """The words after `torso NAME` in the comment at the top of a settings file."""
    comment = " ".join(line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#")
    lines = comment.replace("\\ ", "").split("torso ")
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{name} ")]


def test_the_two_commands_of_the_readme_are_understood() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("torso ")]
    (serve,) = (line[2:] for line in lines if line[1] == "serve")
    (train,) = (line[2:] for line in lines if line[1] == "train")
    assert take_option(train, "--run-dir") == "runs/a"
    config = parse(RunConfig, "train", train).checked()
    assert parse(ServeArguments, "serve", serve).model == config.model
    assert parse_layers(parse(ServeArguments, "serve", serve).layers, 12) == (2, 10)


def test_the_readme_has_a_row_for_each_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"| `torso {name}" not in text] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_commands_in_its_header_are_understood(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (serve,) = commands(path, "serve")
    (train,) = commands(path, "train")
    take_option(train, "--run-dir")
    config = parse(RunConfig, "train", train).checked()
    assert parse(ServeArguments, "serve", serve).model == config.model


@pytest.mark.parametrize("path", COMPARED, ids=lambda path: path.name)
def test_a_comparisons_settings_are_understood(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (words,) = commands(path, "compare")
    options, config = parse_both(CompareArguments, RunConfig(), "compare", words)
    assert options.out == Path("cmp")
    assert config.checked().data == "news:data/news"
    assert options.nproc == "2"


@pytest.mark.parametrize("path", [*FILES, DEMO_SETTINGS], ids=lambda path: path.name)
def test_it_trains_a_tiny_model(path: Path, tiny_model: Path, tiny_data: str, tmp_path: Path) -> None:
    small = ("--model", str(tiny_model), "--data", tiny_data, *SMALL)
    assert main(["train", "--config", str(path), *small, "--run-dir", str(tmp_path / "run")]) == 0
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert any("loss" in record for record in records)
