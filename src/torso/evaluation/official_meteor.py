"""METEOR 1.5 (Denkowski and Lavie 2014) by its authors' own Java program, where it is installed.

The package `pycocoevalcap` (extra `official-meteor`) brings the program with its paraphrase table; Java runs it.
Nothing stands in for it where one of them is missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torso.errors import MissingResourceError
from torso.evaluation.ptb import ptb_tokens
from torso.evaluation.segments import check_segments

TIMEOUT_S = 600.0
"""For all segments of a set; 630 with 4,693 references take some ten seconds."""


def official_meteor(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """Of the whole set, from added-up statistics, and of each segment; 0 to 1.

    On PTB tokens, English, normalised, ranked task's weights. Raises MissingResourceError where Java or the program is
    missing, fails or hangs; ValueError unless each output has references.
    """
    check_segments(outputs, references)
    if not outputs:
        return 0.0, []
    lines = [
        " ||| ".join(["SCORE", *(" ".join(ptb_tokens(r)) for r in rs), " ".join(ptb_tokens(output))])
        for output, rs in zip(outputs, references, strict=True)
    ]
    statistics = _ask(lines, len(lines))
    values = [float(value) for value in _ask([" ||| ".join(["EVAL", *statistics])], len(lines) + 1)]
    return values[-1], values[:-1]


def meteor_command() -> list[str]:
    """How the program is started. Raises MissingResourceError naming what is missing."""
    java = shutil.which("java")
    if java is None:
        raise MissingResourceError("official METEOR needs Java, and there is none", "Install a Java runtime.")
    package = importlib.util.find_spec("pycocoevalcap")
    places = (package.submodule_search_locations or []) if package else []
    jars = [jar for place in places if (jar := Path(place) / "meteor" / "meteor-1.5.jar").is_file()]
    if not jars:
        remedy = "Install it with `pip install 'torso[official-meteor]'`."
        raise MissingResourceError("official METEOR needs the package pycocoevalcap, which is not installed", remedy)
    return [java, "-Xmx2G", "-jar", str(jars[0]), "-", "-", "-stdio", "-l", "en", "-norm"]


def _ask(lines: Sequence[str], num_answers: int) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(
            meteor_command(), input=text.encode(), capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingResourceError(f"official METEOR could not be run: {error}", "Is Java in order?") from None
    answers = done.stdout.decode(errors="replace").split("\n")[:-1]
    if done.returncode != 0 or len(answers) != num_answers:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
        found = (
            f"official METEOR ended with code {done.returncode} and {len(answers)} of {num_answers} answers ({last})"
        )
        raise MissingResourceError(found, "Is Java in order?")
    return answers
