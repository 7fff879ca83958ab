from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from torso.errors import StorageError
from torso.report.log import DecodedExample, read_run
from torso.report.page import describe, page, spread, write_page
from torso.report.tables import example, exponential


def test_the_page_stands_alone(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    path = write_page(make_run(tmp_path / "a", num_steps=50))
    text = path.read_text(encoding="utf-8")
    assert path.name == "report.html"
    assert "<script" not in text
    assert "<link" not in text
    assert "<img" not in text
    assert "@import" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "url(http" not in text
    assert text.count("<svg") == 8


def test_the_page_says_what_the_run_was_and_reached(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    text = page(read_run(make_run(tmp_path / "a", num_steps=50)))
    for expected in ("mini on demo, dora of rank 16, split, 2 clients", "adapter.targets",
                     "arithmetic.cpu_capability",
                     "BLEU, Hugging Face definition", "0.9140", "0.0310", "48.20", "the the"):  # fmt: skip
        assert expected in text, expected


def test_scores_of_a_part_say_so(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    path = make_run(tmp_path / "a", num_steps=5)
    assert "first inputs only" not in page(read_run(path))
    for scores in path.glob("evaluation/*/scores.json"):
        scores.write_text(json.dumps(json.loads(scores.read_text()) | {"partial": True}))
    assert "first inputs only" in page(read_run(path))


def test_whatever_comes_from_the_run_is_escaped(
    tmp_path: Path, make_run: Callable[..., Path], add_evaluation: Callable[..., None], mrs: list[str]
) -> None:
    path = make_run(tmp_path / "<b>", num_steps=2)
    evil = "<script>alert(1)</script>"
    (path / "config.toml").write_text(f'model = "{evil}"\n"<i>" = 1\n')
    add_evaluation(path, "z", 3, adapted=True, perplexity=2.0, bleu=0.5, texts={mrs[0]: evil + '" onload="x'})
    text = page(read_run(path))
    assert evil not in text
    assert "<i>" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;" in text


def test_slot_errors_are_marked_in_the_input_and_named() -> None:
    mr, references = "name[A & B], food[Thai], area[riverside]", ("A & B serves Thai food.",)
    faults = {"missing": ("area",), "added": ("near",), "wrong": ("food",)}
    text = example(DecodedExample(mr=mr, output="A & B", references=references, slot_errors=faults), None)
    assert (
        'name[A &amp; B], <mark title="wrong">food[Thai]</mark>, <mark title="missing">area[riverside]</mark>' in text
    )
    assert "missing: area; added: near; wrong: food" in text
    none = example(DecodedExample(mr=mr, output="A & B", references=references), None)
    assert "<mark" not in none
    assert "slot errors" not in none
    assert "<mark" not in example(DecodedExample(mr="<i>", output="", references=(), slot_errors=faults), None)


def test_slot_errors_come_with_the_outputs(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    path = make_run(tmp_path / "a", num_steps=2)
    outputs = path / "evaluation" / "test" / "outputs.jsonl"
    lines = [json.loads(line) for line in outputs.read_text().splitlines()]
    for line in lines:
        line["slot_errors"] = {"missing": ["area"]}
    outputs.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**lines[0], "slot_errors": 3}]))
    run = read_run(path)
    assert run.after is not None
    assert [e.slot_errors for e in run.after.examples] == [{"missing": ("area",)}] * len(lines)


def test_a_run_without_server_or_evaluation_has_a_page(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert "no step logged yet" in page(read_run(tmp_path))
    assert "Sent to the body server" not in page(read_run(make_run(tmp_path / "b", 4, server=False)))


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = make_run(tmp_path / "a", num_steps=2)
    with pytest.raises(StorageError, match="could not be written"):
        write_page(run, tmp_path / "absent" / "r.html")


def test_examples_are_spread_not_picked() -> None:
    examples = [DecodedExample(mr=str(n), output="", references=()) for n in range(10)]
    assert [e.mr for e in spread(examples, 3)] == ["0", "3", "6"]
    assert len(spread(examples[:2], 3)) == 2


def test_a_description_needs_no_setting(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert describe(read_run(tmp_path)) == ""
    assert exponential(1e6) == float("inf")
