from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from torso.report.log import DecodedExample, Run, read_run
from torso.report.summary import Check, nearest_reference, print_summary, summary_lines

CHECKS = (
    Check(name="split equals whole", left="3f" * 32, right="3f" * 32),
    Check(name="1 + 1 equals 2", left="aa" * 32, right="bb" * 32),
)


@pytest.fixture
def run(tmp_path: Path, make_run: Callable[..., Path]) -> Run:
    return read_run(make_run(tmp_path / "a", num_steps=50))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 40), (100, 24), (100, 40), (92, 31), (200, 100)])
def test_the_summary_fits_one_screen(run: Run, width: int, height: int) -> None:
    lines = summary_lines(run, CHECKS, seconds=125.0, width=width, height=height)
    assert len(lines) < height
    assert max(map(len, lines)) <= min(width, 100)


def test_the_summary_names_every_number_that_was_asked_for(run: Run) -> None:
    text = "\n".join(summary_lines(run, CHECKS, seconds=125.0))
    for expected in ("loss", "perplexity", "BLEU", "METEOR", "before", "after", "0.914", "0.031",
                     "48.20", "1.52", "sent 73.7 MB", "2 min 05 s", "report.html"):  # fmt: skip
        assert expected in text, expected
    assert text.count("decoded ") == 3
    assert text.count("reference ") == 3


def test_checks_pass_only_when_both_digests_are_there_and_equal(run: Run) -> None:
    lines = summary_lines(run, CHECKS)
    assert any(line.startswith("PASS  split equals whole  3f3f") and " = " in line for line in lines)
    assert any(line.startswith("FAIL  1 + 1 equals 2  aaaa") and " ≠ " in line for line in lines)
    assert not Check(name="x", left="", right="").passed


def test_a_run_without_evaluation_has_a_summary(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert "no evaluation yet" in summary_lines(read_run(tmp_path))


def test_print_writes_plain_text_where_there_is_no_terminal(run: Run) -> None:
    out = io.StringIO()
    print_summary(run, CHECKS, file=out)
    assert "\x1b" not in out.getvalue()
    assert "PASS  split equals whole" in out.getvalue()


def test_the_nearest_reference_stands_beside_an_output() -> None:
    example = DecodedExample(mr="", output="a pub near b", references=("something else", "near b there is a pub"))
    assert nearest_reference(example) == "near b there is a pub"
    assert nearest_reference(DecodedExample(mr="", output="x", references=())) == "(none)"
