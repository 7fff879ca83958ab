"""A run on one screen: what fine-tuning changed, three decoded examples, what it cost, and the checks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from torso.report.log import DecodedExample, Evaluation, Run
from torso.report.page import describe, spread
from torso.report.tables import score
from torso.report.units import duration, number, size

_SCORES = (
    ("loss", "loss per target token", 3),
    ("perplexity", "perplexity", 2),
    ("hf_bleu", "BLEU (Hugging Face)", 3),
    ("hf_meteor", "METEOR (Hugging Face)", 3),
)
_LAYOUTS = (
    (True, 3, True),
    (True, 2, True),
    (True, 2, False),
    (False, 2, False),
    (True, 1, False),
    (False, 1, False),
)
"""(meaning representation shown, lines a text at most, blank lines), the roomiest first."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A promise that was put to the test: two runs, two digests, which should be one."""

    name: str
    """E.g. `split equals whole`."""
    left: str
    right: str

    @property
    def passed(self) -> bool:
        """Equal, and not both absent."""
        return bool(self.left) and self.left == self.right


def print_summary(
    run: Run, checks: Sequence[Check] = (), *, seconds: float | None = None, file: TextIO | None = None
) -> None:
    """Print the summary, coloured on a terminal. `seconds`: what the whole took (default: the steps)."""
    console = Console(file=file, highlight=False)
    for line in summary_lines(run, checks, seconds=seconds, width=console.width, height=console.height):
        console.print(_coloured(line), soft_wrap=True)


def summary_lines(
    run: Run, checks: Sequence[Check] = (), *, seconds: float | None = None, width: int = 80, height: int = 24
) -> list[str]:
    """Fewer than `height` lines (24 or more) of at most `width` characters, so that a prompt fits below."""
    width = max(60, min(width, 100))
    top = [_clip(f"Torso: {describe(run) or run.name}", width), *_score_lines(run)]
    bottom = _cost_lines(run, seconds, width) + [_check_line(check, width) for check in checks]
    bottom.append(_report_line(run.path / "report.html", width))
    examples = spread(run.after.examples, 3) if run.after else []
    lines: list[str] = []
    for with_mr, num_lines, blank in _LAYOUTS:
        space = [""] if blank else []
        middle = [line for e in examples for line in _example_lines(e, width, with_mr, num_lines)]
        lines = [*top, *space, *middle, *space, *bottom]
        if len(lines) < max(24, min(height, 40)):
            break
    return lines


def _score_lines(run: Run) -> list[str]:
    """One row a score; rows that neither evaluation has are left out."""
    before, after = run.before, run.after
    if before is None and after is None:
        return ["no evaluation yet"]
    lines = [f"{'on ' + str(run.subset):<24}{'before':>10}{'after':>10}"]
    for name, title, digits in _SCORES:
        if score(before, name) is not None or score(after, name) is not None:
            lines.append(f"{title:<24}{_cell(before, name, digits):>10}{_cell(after, name, digits):>10}")
    return lines


def _cell(evaluation: Evaluation | None, name: str, digits: int) -> str:
    value = score(evaluation, name)
    return "-" if value is None or math.isnan(value) else number(value, digits)


def _example_lines(e: DecodedExample, width: int, with_mr: bool, num_lines: int) -> list[str]:
    lines = [_clip(e.mr, width)] if with_mr else []
    lines += _wrapped("decoded    ", e.output or "(nothing)", width, num_lines)
    return lines + _wrapped("reference  ", nearest_reference(e), width, num_lines)


def nearest_reference(e: DecodedExample) -> str:
    """The reference that shares most words with the output: any of several people may be followed."""
    words = set(e.output.lower().split())

    def overlap(text: str) -> float:
        own = set(text.lower().split())
        return len(words & own) / max(1, len(words | own))

    return max(e.references, key=overlap, default="(none)")


def _wrapped(name: str, text: str, width: int, num_lines: int) -> list[str]:
    """`text` beside `name`, on at most `num_lines` lines, cut with an ellipsis when it is longer."""
    room = width - len(name) - 2
    lines = textwrap.wrap(" ".join(text.split()), room, max_lines=num_lines, placeholder=" …") or [""]
    return ["  " + (name if n == 0 else " " * len(name)) + line for n, line in enumerate(lines)]


def _cost_lines(run: Run, seconds: float | None, width: int) -> list[str]:
    if not run.steps:
        return []
    spent = duration(run.seconds if seconds is None else seconds)
    memory = size(max(s.memory_bytes for s in run.steps))
    server = max(s.server_memory_bytes for s in run.steps)
    first, last = run.steps[0].loss, run.steps[-1].loss
    losses = f"training loss {number(first)} to {number(last)}"
    memory = f"memory {memory} a client" + (f", {size(server)} a worker" if server else "")
    wire = f"time {spent}, sent {size(run.bytes_sent)}, received {size(run.bytes_received)}"
    return [_clip(f"{losses}; {memory}", width), _clip(wire, width)]


def _check_line(check: Check, width: int) -> str:
    word, sign = ("PASS", "=") if check.passed else ("FAIL", "≠")
    room = (width - len(check.name) - 14) // 2
    digits = max(8, min(16, room))
    left, right = (digest[:digits] or "no digest" for digest in (check.left, check.right))
    return f"{word}  {check.name}  {left} {sign} {right}"


def _report_line(path: Path, width: int) -> str:
    """The end of a long path says more than its beginning."""
    text, room = str(path), width - 8
    return "report  " + (text if len(text) <= room else "…" + text[1 - room :])


def _clip(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _coloured(line: str) -> Text:
    """Green and red for the checks, bold for the title and names; the words alone say the same."""
    text = Text(line)
    if line.startswith(("PASS", "FAIL")):
        text.stylize("bold green" if line.startswith("PASS") else "bold red", 0, 4)
    elif line.startswith("Torso:"):
        text.stylize("bold")
    elif line.startswith(("  decoded", "  reference")):
        text.stylize("cyan" if line.startswith("  decoded") else "dim", 0, 12)
    return text
