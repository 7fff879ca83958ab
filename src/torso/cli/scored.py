"""What `torso score` shows: a table for people, a JSON document, and values by input."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torso.evaluation.metrics import Texts
from torso.evaluation.resampling import NUM_TRIALS
from torso.evaluation.slot_errors import slot_errors
from torso.records import finite

LEVEL = 0.05
"""A difference with a smaller p is called significant."""


@dataclass(frozen=True)
class Line:
    """One metric."""

    name: str
    title: str
    value: float
    signature: str
    low: float | None = None
    """Of the 95 % interval."""
    high: float | None = None
    other: float | None = None
    """The value of the outputs compared with."""
    p: float | None = None
    """Of the difference, by approximate randomisation."""
    difference_low: float | None = None
    """Of the 95 % interval of the difference, the other's value minus this one."""
    difference_high: float | None = None

    def beside(self, other: float, p: float, low: float | None, high: float | None) -> Line:
        """The same with what a comparison found."""
        return dataclasses.replace(self, other=other, p=p, difference_low=low, difference_high=high)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Everything that is printed."""

    lines: tuple[Line, ...]
    not_computed: tuple[tuple[str, str, str], ...]
    """Name, title, why."""
    num_outputs: int
    num_empty: int
    num_references: int
    outputs_form: str
    references_form: str
    bootstrap: int
    seed: int
    compared_with: str


def table(scored: Scored) -> str:
    """For people: a line a metric; what could not be computed, and why; what was scored."""
    head = ["metric", "value"]
    head += ["95 % interval"] if scored.bootstrap else []
    head += ["other", "difference", "p"] if scored.compared_with else []
    head += ["95 % of difference"] if scored.compared_with and scored.bootstrap else []
    rows = [[*head, "signature"], *(_cells(line, scored) for line in scored.lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    text = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    text += [f"{title}: not computed. {why}" for _, title, why in scored.not_computed]
    text += [_what(scored)]
    if scored.bootstrap:
        text += [f"Intervals: percentile bootstrap over inputs, {scored.bootstrap} resamples, seed {scored.seed}."]
    if scored.compared_with:
        text += [
            f"Compared with {scored.compared_with}: two-sided approximate randomisation, {NUM_TRIALS} trials, seed "
            f"{scored.seed}; * marks p < {LEVEL}."
        ]
    return "\n".join(text) + "\n"


def document(scored: Scored, segments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For programs."""
    found: dict[str, Any] = {
        "outputs": scored.num_outputs,
        "empty_outputs": scored.num_empty,
        "references": scored.num_references,
        "text": {"outputs": scored.outputs_form, "references": scored.references_form},
        "scores": {line.name: _of_line(line) for line in scored.lines},
        "not_computed": {name: why for name, _, why in scored.not_computed},
    }
    if scored.bootstrap:
        found["bootstrap"] = {"resamples": scored.bootstrap, "seed": scored.seed, "interval": "percentile, 95 %"}
    if scored.compared_with:
        test = {"test": "approximate randomisation, two-sided", "trials": NUM_TRIALS, "seed": scored.seed}
        found["compared_with"] = {"predictions": scored.compared_with, **test}
    if segments:
        found["segments"] = list(segments)
    return dict(finite(found))


def segment_rows(texts: Texts, values: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """One an input: its number from 1, the input where it is known, the output, and its values."""
    rows: list[dict[str, Any]] = []
    for index, output in enumerate(texts.outputs):
        known = {} if texts.mrs is None else {"mr": texts.mrs[index]}
        own = {name: of_all[index] for name, of_all in values.items()}
        rows.append({"number": index + 1, **known, "output": output, **own, **_slots(known.get("mr", ""), output)})
    return rows


def _slots(mr: str, output: str) -> dict[str, list[str]]:
    """Missing, added and wrong slots, where the input is E2E's."""
    errors = slot_errors(mr, output)
    return {} if errors is None else {f"{kind}_slots": slots for kind, slots in errors.by_kind.items()}


def tsv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line a row; nothing without rows."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    return "".join("\t".join(line) + "\n" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    return ", ".join(value) if isinstance(value, list) else " ".join(str(value).split())


def _cells(line: Line, scored: Scored) -> list[str]:
    cells = [line.title, f"{line.value:.4f}"]
    cells += [_range(line.low, line.high)] if scored.bootstrap else []
    if scored.compared_with:
        cells += _comparison(line)
        cells += [_range(line.difference_low, line.difference_high)] if scored.bootstrap else []
    return [*cells, line.signature]


def _comparison(line: Line) -> list[str]:
    if line.other is None or line.p is None:
        return ["-", "-", "-"]
    return [f"{line.other:.4f}", f"{line.other - line.value:+.4f}", f"{line.p:.4f}{'*' if line.p < LEVEL else ''}"]


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def _of_line(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {"value": line.value, "signature": line.signature}
    if line.low is not None:
        found["interval"] = [line.low, line.high]
    if line.other is not None and line.p is not None:
        found |= {
            "other": line.other,
            "difference": line.other - line.value,
            "p": line.p,
            "significant": line.p < LEVEL,
        }
        if line.difference_low is not None:
            found["difference_interval"] = [line.difference_low, line.difference_high]
    return found


def _what(scored: Scored) -> str:
    empty = f", {scored.num_empty} of them empty" if scored.num_empty else ""
    form = f"outputs {scored.outputs_form}, references {scored.references_form}"
    if scored.outputs_form == scored.references_form:
        form = f"{scored.outputs_form} text"
    return f"{scored.num_outputs} outputs{empty}, {scored.num_references} references; scored: {form}."
