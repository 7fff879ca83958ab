"""METEOR 1.5 (Denkowski and Lavie 2014): alignments by its authors' own Java program, where it is installed.

The package `pycocoevalcap` (extra `official-meteor`) brings the program with its paraphrase table; Java runs it.
Nothing stands in for it where one of them is missing. The program gives 23 numbers a segment, which add up over
segments; the last formula, from sums to the score, is computed here.

Statistics are [N, 23]: words of the output and of its best reference; function words of both; for each of the matchers
exact, stem, synonym and paraphrase the matched content words of both and function words of both; chunks; matched words
of both.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from torso.errors import MissingResourceError
from torso.evaluation.ptb import ptb_tokens
from torso.evaluation.segments import Array, check_segments

TIMEOUT_S = 600.0
"""For all segments of a set; 630 with 4,693 references take some ten seconds."""
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
"""Of the matchers: English, ranking task."""
NUM_STATISTICS = 23


def official_meteor_statistics(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
    """[N, 23], on PTB tokens, with the program's own normalisation.

    Raises MissingResourceError where Java or the program is missing, fails or hangs; ValueError unless each output has
    references.
    """
    with official_meteor_at_work(outputs, references) as statistics:
        return statistics()


@contextmanager
def official_meteor_at_work(
    outputs: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterator[Callable[[], Array]]:
    """The same while other things are done: what is given waits for the program, which is ended with the block."""
    check_segments(outputs, references)
    command = meteor_command()
    lines = [
        " ||| ".join(["SCORE", *map(_line, rs), _line(output)]) for output, rs in zip(outputs, references, strict=True)
    ]
    with _at_work(command, lines) as answers:
        yield lambda: _statistics(answers())


def _statistics(answers: Sequence[str]) -> Array:
    statistics = np.array([_numbers(answer) for answer in answers], dtype=np.float64).reshape(-1, NUM_STATISTICS)
    length, expected, chunks, matched, others = statistics[:, [0, 1, 20, 21, 22]].T
    # one chunk that covers output and reference is no fragment, in a sum neither
    statistics[(matched == length) & (others == expected) & (chunks == 1.0), 20] = 0.0
    return statistics


def official_meteor_of(sums: Array) -> Array:
    """[..., 23] → [...]: section 2 of the paper; 0 where nothing matches."""
    length, expected, function, expected_function = np.moveaxis(sums[..., :4], -1, 0)
    matches = sums[..., 4:20].reshape(*sums.shape[:-1], 4, 4)
    precision = _share(matches[..., 0], matches[..., 2], length - function, function)
    recall = _share(matches[..., 1], matches[..., 3], expected - expected_function, expected_function)
    below = ALPHA * precision + (1.0 - ALPHA) * recall
    mean = np.divide(precision * recall, below, out=np.zeros_like(below), where=below > 0.0)
    matched = (sums[..., 21] + sums[..., 22]) / 2.0
    fragments = np.divide(sums[..., 20], matched, out=np.zeros_like(below), where=matched > 0.0)
    return np.asarray(mean * (1.0 - GAMMA * fragments**BETA))


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


def _share(content: Array, function: Array, num_content: Array, num_function: Array) -> Array:
    """Matched [..., 4] by matcher / words [...], where a content word counts DELTA and a function word the rest."""
    matched = (DELTA * content + (1.0 - DELTA) * function) @ WEIGHTS
    words = DELTA * num_content + (1.0 - DELTA) * num_function
    return np.asarray(np.divide(matched, words, out=np.zeros_like(matched), where=words > 0.0))


def _line(text: str) -> str:
    """Tokens, without what parts lines, or the texts of a line, in the program's protocol."""
    return " ".join(" ".join(ptb_tokens(text)).replace("|||", "").split())


def _numbers(answer: str) -> list[float]:
    try:
        numbers = [float(number) for number in answer.split()]
    except ValueError:
        numbers = []
    if len(numbers) != NUM_STATISTICS:
        raise MissingResourceError(f"official METEOR answered {answer[:80]!r}", "Is it version 1.5?")
    return numbers


@contextmanager
def _at_work(command: Sequence[str], lines: Sequence[str]) -> Iterator[Callable[[], list[str]]]:
    """The program, which ends with its input and at the latest with the block; its answers are one a line."""
    with ExitStack() as files:
        try:
            # files, for pipes would have to be fed and emptied meanwhile
            given, answered, said = (files.enter_context(TemporaryFile()) for _ in range(3))
            given.write("".join(f"{line}\n" for line in lines).encode())
            given.seek(0)
            program = subprocess.Popen(command, stdin=given, stdout=answered, stderr=said)
        except OSError as error:
            raise MissingResourceError(f"official METEOR could not be run: {error}", "Is Java in order?") from None
        try:
            yield lambda: _answers(program, len(lines), answered, said)
        finally:
            program.kill()
            program.wait()


def _answers(program: subprocess.Popen[bytes], num: int, answered: IO[bytes], said: IO[bytes]) -> list[str]:
    try:
        code = program.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise MissingResourceError(
            f"official METEOR did not end within {TIMEOUT_S:.0f} s", "Is Java in order?"
        ) from None
    answers = _read(answered).split("\n")[:-1]
    if code != 0 or len(answers) != num:
        last = (_read(said).strip().splitlines() or ["nothing said"])[-1]
        found = f"ended with code {code} and {len(answers)} of {num} answers ({last[:200]})"
        raise MissingResourceError(f"official METEOR {found}", "Is Java in order?")
    return answers


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
