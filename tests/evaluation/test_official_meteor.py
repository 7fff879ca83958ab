"""Official METEOR: the last formula on the program's own statistics, and the program where it is installed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torso.errors import MissingResourceError
from torso.evaluation import official_meteor
from torso.evaluation.metrics import Texts, measure
from torso.evaluation.official_meteor import (
    meteor_command,
    official_meteor_at_work,
    official_meteor_of,
    official_meteor_statistics,
)

if TYPE_CHECKING:
    from tests.evaluation.conftest import Scored

# What meteor-1.5.jar answers for the ten instances (PTB tokens, -l en -norm).
ANSWERS = """
12 11 6 5 5 5 4 4 0 0 0 0 1 1 0 0 0 0 0 0 4 10 10
14 14 4 5 7 7 3 3 0 0 0 0 2 1 0 1 0 0 0 0 3 12 12
10 7 4 2 5 5 2 2 0 0 0 0 0 0 0 0 0 0 0 0 2 7 7
13 15 4 5 9 9 4 4 0 0 0 0 0 0 0 0 0 0 0 0 2 13 13
12 8 6 4 3 3 2 2 0 0 0 0 0 0 0 0 0 0 0 0 2 5 5
14 13 6 5 7 7 5 5 0 0 0 0 0 0 0 0 0 0 0 0 4 12 12
12 12 5 5 6 6 5 5 0 0 0 0 0 0 0 0 1 1 0 0 3 12 12
13 14 4 5 8 8 4 4 0 0 0 0 0 0 0 0 0 0 0 0 3 12 12
23 24 9 10 12 12 7 7 2 2 0 0 0 0 0 0 0 0 0 0 5 21 21
23 22 9 8 13 13 8 8 0 0 0 0 0 0 0 0 0 0 0 0 6 21 21
"""


def fake_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """The official program is replaced by this one, in Python."""
    script = tmp_path / "meteor.py"
    script.write_text(program)
    monkeypatch.setattr(official_meteor, "meteor_command", lambda: [sys.executable, "-S", str(script)])


def test_the_formula_gives_the_official_values_from_the_programs_statistics(ten: Scored) -> None:
    statistics = np.array([line.split() for line in ANSWERS.strip().splitlines()], dtype=np.float64)
    expected = [segment["METEOR"] for segment in ten.official["segments"]]
    assert official_meteor_of(statistics).tolist() == pytest.approx(expected, abs=1e-12)
    assert float(official_meteor_of(statistics.sum(axis=0))) == pytest.approx(
        ten.official["corpus"]["METEOR"], abs=1e-12
    )


@pytest.mark.slow
def test_both_sets_have_the_official_values_where_the_program_is(ten: Scored, tgen: Scored) -> None:
    try:
        meteor_command()
    except MissingResourceError as error:
        pytest.skip(str(error))
    # one start of Java for both: statistics are of single segments
    statistics = official_meteor_statistics(
        [*ten.outputs, *tgen.outputs, "", "pub"], [*ten.references, *tgen.references, ("a pub",), ("pub",)]
    )
    assert official_meteor_of(statistics[-2:]).tolist() == [0.0, 1.0]
    for scored, rows in ((ten, statistics[:10]), (tgen, statistics[10:-2])):
        expected = [segment["METEOR"] for segment in scored.official["segments"]]
        assert official_meteor_of(rows).tolist() == pytest.approx(expected, abs=1e-6)
        assert float(official_meteor_of(rows.sum(axis=0))) == pytest.approx(
            scored.official["corpus"]["METEOR"], abs=1e-6
        )


def test_the_program_gets_tokens_of_references_then_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(
        monkeypatch, tmp_path,
        "import sys\n"
        "lines = sys.stdin.buffer.read().decode().splitlines()\n"
        "assert lines == ['SCORE ||| a pub ||| it \\'s | | | <i > cheap ||| the café'], lines\n"
        "print(' '.join(['1.0'] * 23))\n",
    )  # fmt: skip
    assert official_meteor_statistics(["The Café."], [["A pub.", "It's ||| <i\r>cheap!"]]).shape == (1, 23)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit('out of memory')", r"ended with code 1 and 0 of 1 answers \(out of memory\)"),
        ("import os; os.kill(os.getpid(), 9)", "ended with code -9 and 0 of 1 answers"),
        ("print('1.0 2.0')", "answered '1.0 2.0'"),
        ("print('Exception in thread main')", "answered 'Exception in thread main'"),
        ("print('1\\n2')", "2 of 1 answers"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_program_that_fails_hangs_or_babbles_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, message: str
) -> None:
    fake_java(monkeypatch, tmp_path, program)
    monkeypatch.setattr(official_meteor, "TIMEOUT_S", 1.0)
    with pytest.raises(MissingResourceError, match=message):
        official_meteor_statistics(["a"], [["b"]])


def test_the_program_ends_with_the_work_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    fake_java(
        monkeypatch, tmp_path,
        f"import os, time\nopen({str(note)!r}, 'w').write(f'{{os.getpid()}} ')\ntime.sleep(60)\n",
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt), official_meteor_at_work(["a"], [["b"]]):
        while not (note.exists() and note.read_text().endswith(" ")):
            time.sleep(0.01)
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_without_java_or_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official_meteor.shutil, "which", lambda name: None)
    with pytest.raises(MissingResourceError, match="needs Java"):
        meteor_command()
    monkeypatch.setattr(official_meteor.shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setattr(official_meteor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingResourceError, match=r"pip install 'torso\[official-meteor\]'"):
        meteor_command()


def test_what_cannot_be_run_is_not_computed_and_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official_meteor, "meteor_command", lambda: ["/nowhere/java"])
    found = measure(Texts(outputs=["a"], references=[["a"]]), ["hf_meteor"])
    assert "official METEOR could not be run" in found.not_computed["official_meteor"]
    assert not [one for one in found.measured if "meteor" in one.metric.name]
