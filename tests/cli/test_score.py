from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torso.cli.main import main

A, B = "name[Aromi], eatType[pub], area[riverside]", "name[Zizzi], food[Thai]"
ROWS = [(A, "Aromi is a pub by the river."), (A, "A pub, Aromi, lies by the river."), (B, "Zizzi has Thai food.")]
GOOD = ["Aromi is a pub by the river.", "Zizzi serves Thai food."]
POOR = ["Aromi is a place.", ""]
Score = Callable[..., dict[str, Any]]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """References in three formats, and two sets of outputs."""
    contents = {
        "refs.csv": "ref,mr\n" + "".join(f'"{ref}","{mr}"\n' for mr, ref in ROWS),
        "refs.txt": f"{ROWS[0][1]}\n{ROWS[1][1]}\n\n{ROWS[2][1]}\n",
        "refs.jsonl": "".join(json.dumps({"mr": mr, "references": [ref]}) + "\n" for mr, ref in ROWS),
        "mrs.txt": f"{A}\n{B}\n",
        "good.txt": "\n".join(GOOD) + "\n",
        "poor.txt": "\n".join(POOR) + "\n",
        "short.txt": GOOD[1] + "\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: tmp_path / name for name in contents}


@pytest.fixture
def score(capsys: pytest.CaptureFixture[str]) -> Score:
    """The JSON document of a `torso score` without the official METEOR."""

    def run(*words: str | Path) -> dict[str, Any]:
        assert main(["score", "--no-official-meteor", "--json", *map(str, words)]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        return document

    return run


def test_the_ten_instances_have_their_values_from_the_command_line(score: Score, shared_data: Path) -> None:
    folder = shared_data / "e2e-metrics"
    found = score("--references", folder / "devel-conc.txt", "--predictions", folder / "baseline-output.txt")
    official = json.loads((folder / "example_inputs.json").read_text())["corpus"]
    assert found["scores"]["official_bleu"]["value"] == pytest.approx(official["BLEU_py"], abs=1e-6)
    assert found["scores"]["official_cider"]["value"] == pytest.approx(official["CIDEr"], abs=1e-6)
    assert (found["outputs"], found["references"], found["text"]) == (10, 137, {"outputs": "raw", "references": "raw"})
    assert found["not_computed"]["official_meteor"] == "left out by --no-official-meteor"


def test_formats_give_the_same_scores_and_slot_errors_need_inputs(score: Score, files: dict[str, Path]) -> None:
    predictions = ("--predictions", files["good.txt"])
    csv, jsonl = (score("--references", files[name], *predictions) for name in ("refs.csv", "refs.jsonl"))
    plain = score("--references", files["refs.txt"], *predictions)
    with_mrs = score("--references", files["refs.txt"], "--mrs", files["mrs.txt"], *predictions)
    assert csv == jsonl == with_mrs
    assert csv["scores"]["slot_error_rate"]["value"] == 0.0
    assert "no inputs are given" in plain["not_computed"]["slot_error_rate"]


def test_intervals_comparison_and_segments(score: Score, files: dict[str, Path]) -> None:
    found = score(
        *("--references", files["refs.csv"], "--predictions", files["good.txt"], "--compare", files["poor.txt"]),
        *("--bootstrap", "50", "--segments"),
    )
    bleu, errors = found["scores"]["official_bleu"], found["scores"]["slot_error_rate"]
    assert bleu["interval"][0] <= bleu["value"] <= bleu["interval"][1]
    assert bleu["difference"] == bleu["other"] - bleu["value"] < 0.0
    assert errors["other"] == pytest.approx(4 / 5)
    assert errors["p"] == pytest.approx(0.5, abs=0.02)  # two of four exchanges
    assert errors["significant"] is False
    assert found["compared_with"]["test"] == "approximate randomisation, two-sided"
    assert [(row["number"], row["mr"], row["output"]) for row in found["segments"]] == [
        (1, A, GOOD[0]),
        (2, B, GOOD[1]),
    ]
    assert found["segments"][0]["official_bleu"] == pytest.approx(1.0)


def test_the_table_says_what_was_scored_and_how(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = files["mrs.txt"].with_name("segments.tsv")
    words = ["--references", files["refs.csv"], "--predictions", files["poor.txt"], "--segments-out", out]
    words += ["--bootstrap", "20", "--compare", files["good.txt"], "--no-official-meteor"]
    assert main(["score", *map(str, words)]) == 0
    text = capsys.readouterr().out
    assert "bleu|e2e-official|tok:13a|case:lower|" in text
    assert "METEOR, official E2E: not computed. left out by --no-official-meteor" in text
    assert "2 outputs, 1 of them empty, 3 references; scored: raw text." in text
    assert "percentile bootstrap over inputs, 20 resamples, seed 0" in text
    assert "two-sided approximate randomisation, 10000 trials" in text
    header, first, second = out.read_text(encoding="utf-8").splitlines()
    assert header.split("\t")[:4] == ["number", "mr", "output", "official_bleu"]
    assert first.split("\t")[:3] == ["1", A, POOR[0]]
    assert second.split("\t")[2:4] == ["", "0.000000"]
    assert header.split("\t")[-3:] == ["missing_slots", "added_slots", "wrong_slots"]
    assert first.split("\t")[-3:] == ["eatType, area", "", ""]


def test_tokenised_outputs_beside_raw_references_are_warned_of(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files["good.txt"].write_text("Aromi is a pub by the river .\nZizzi serves Thai food .\n", encoding="utf-8")
    words = ["--references", files["refs.txt"], "--predictions", files["good.txt"], "--no-official-meteor"]
    assert main(["score", *map(str, words)]) == 0
    printed = capsys.readouterr()
    assert "text:outputs-tokenised+references-raw" in printed.out
    assert "good.txt looks tokenised and the references look raw" in printed.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"--predictions": "short.txt"},
            "1 outputs, but references of 2 inputs; the first without an output seems to be",
        ),
        ({"--predictions": "nowhere.txt"}, "there is no file"),
        ({"--compare": "short.txt"}, "1 outputs, but references of 2 inputs"),
        ({"--bootstrap": "-1"}, "bootstrap is -1"),
        ({"--bootstrap": "99999999999"}, "from 0 to 1000000"),
        ({"--segments-out": "."}, "a folder. Name a file."),
        ({"--segments-out": "nowhere/x.tsv"}, "there is no folder"),
        ({"--seed": "-1"}, "seed is -1"),
        ({"--references": "."}, "is a folder where a file was expected"),
    ],
)
def test_a_wrong_request_is_one_line(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    folder = files["refs.csv"].parent
    options = {"--references": "refs.csv", "--predictions": "good.txt"} | changes
    words = [
        [name, value if name in ("--bootstrap", "--seed") else str(folder / value)] for name, value in options.items()
    ]
    assert main(["score", *(word for pair in words for word in pair)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("torso: error: ")
    assert message in line
