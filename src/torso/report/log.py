"""Reads a run directory for people: settings, machine, log, scores, decoded outputs. Nothing here writes.

A report is often asked for while the run goes on or after it was killed, so whatever is missing or cut is
left out and counted, and only a directory that is no run at all is an error.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torso.errors import RunDirectoryError
from torso.records import EpochRecord, EvaluationRecord, Record, StepRecord, parse_line

OUTPUTS = "outputs.jsonl"
SCORES = "scores.json"


@dataclass(frozen=True, kw_only=True)
class DecodedExample:
    """One meaning representation with what the model said and what people wrote."""

    mr: str
    output: str
    references: tuple[str, ...]
    slot_errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots by kind (missing, added, wrong); empty where they were not looked for."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation with its decoded outputs, where these were saved."""

    record: EvaluationRecord
    examples: tuple[DecodedExample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a report needs of one run."""

    path: Path
    settings: Mapping[str, Any]
    """Resolved settings as `config.toml` has them; nested tables stay nested."""
    state: Mapping[str, Any]
    """`run.json`: job, generation, target epochs."""
    info: Mapping[str, Any]
    """`info.json` of the newest checkpoint: what identifies the run, its arithmetic among it."""
    steps: tuple[StepRecord, ...]
    """In order, one for each step."""
    epochs: tuple[EpochRecord, ...]
    evaluations: tuple[Evaluation, ...]
    """In order of step, the base model's before the adapted one's."""
    num_unreadable: int
    """Lines of the log, other than a cut last one, that could not be read."""

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.resolve().name

    @property
    def bytes_sent(self) -> int:
        """By all clients in all logged steps."""
        return sum(step.bytes_sent for step in self.steps)

    @property
    def bytes_received(self) -> int:
        """By all clients in all logged steps."""
        return sum(step.bytes_received for step in self.steps)

    @property
    def seconds(self) -> float:
        """Spent in steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def subset(self) -> str | None:
        """The subset that was evaluated last on the adapted model, or at all."""
        return self.evaluations[-1].record.subset if self.evaluations else None

    @property
    def before(self) -> Evaluation | None:
        """The base model's newest evaluation on `subset`."""
        return self._newest(adapted=False)

    @property
    def after(self) -> Evaluation | None:
        """The adapted model's newest evaluation on `subset`."""
        return self._newest(adapted=True)

    def _newest(self, *, adapted: bool) -> Evaluation | None:
        of_kind = [e for e in self.evaluations if e.record.adapted == adapted and e.record.subset == self.subset]
        return of_kind[-1] if of_kind else None


def read_run(path: Path) -> Run:
    """Read the run in `path`; raises RunDirectoryError when there is none."""
    if not (path / "run.json").is_file() and not (path / "config.toml").is_file():
        raise RunDirectoryError(f"{path} holds no run", "Give the folder that an earlier `torso train` made.")
    records, unreadable = read_records(path / "metrics.jsonl")
    steps = _latest(record for record in records if isinstance(record, StepRecord))
    epochs = {record.epoch: record for record in records if isinstance(record, EpochRecord)}
    return Run(
        path=path,
        settings=_read_toml(path / "config.toml"),
        state=_read_json(path / "run.json"),
        info=_read_info(path / "checkpoints"),
        steps=tuple(steps),
        epochs=tuple(epochs[number] for number in sorted(epochs)),
        evaluations=_read_evaluations(path, records),
        num_unreadable=unreadable,
    )


def read_records(path: Path) -> tuple[list[Record], int]:
    """The log's whole lines, and how many others could not be read; a last line cut by a kill is no fault."""
    if not path.is_file():
        return [], 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records: list[Record] = []
    bad = 0
    for number, line in enumerate(lines, start=1):
        try:
            records.append(parse_line(line))
        except (ValueError, TypeError, AttributeError):
            bad += number < len(lines) and bool(line.strip())
    return records, bad


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as `table.key` to text, in their order."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            flat[prefix + key] = ", ".join(map(str, value))
        else:
            flat[prefix + key] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def find_setting(settings: Mapping[str, Any], *names: str) -> Any:
    """The first of these names found at any depth, or None."""
    for name in names:
        for key, value in settings.items():
            if key == name and not isinstance(value, Mapping):
                return value
            found = find_setting(value, name) if isinstance(value, Mapping) else None
            if found is not None:
                return found
    return None


_Numbered = TypeVar("_Numbered", bound=StepRecord)


def _latest(records: Iterable[_Numbered]) -> list[_Numbered]:
    """One record a step, the one written last: steps may be logged twice around a roll-back."""
    by_step = {record.step: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def _read_evaluations(path: Path, records: list[Record]) -> tuple[Evaluation, ...]:
    """From `evaluation/*/`, and from the log what has no directory there; of first inputs only what lacks a whole."""
    in_log = [Evaluation(record=record) for record in records if isinstance(record, EvaluationRecord)]
    in_folders = [_read_evaluation(folder) for folder in sorted((path / "evaluation").glob("*/"))]
    found: dict[tuple[int, str, bool, str], Evaluation] = {}
    known = [evaluation for evaluation in (*in_log, *in_folders) if evaluation is not None]
    for evaluation in sorted(known, key=lambda e: not e.record.partial):
        record = evaluation.record
        found[record.step, record.subset, record.adapted, record.decoding] = evaluation
    return tuple(sorted(found.values(), key=lambda e: (e.record.step, e.record.adapted, e.record.decoding)))


def _read_evaluation(folder: Path) -> Evaluation | None:
    fields = _read_json(folder / SCORES)
    try:
        record = EvaluationRecord(
            step=int(fields["step"]),
            subset=str(fields["subset"]),
            adapted=bool(fields["adapted"]),
            perplexity=_float(fields.get("perplexity")),
            partial=bool(fields.get("partial", False)),
            decoding=str(fields.get("decoding", "")),
            scores={str(name): _float(value) for name, value in dict(fields["scores"]).items()},
        )
    except (KeyError, TypeError, ValueError):
        return None
    return Evaluation(record=record, examples=_read_outputs(folder / OUTPUTS))


def _float(value: Any) -> float:
    """Null stands for what was not finite."""
    return math.nan if value is None else float(value)


def _read_outputs(path: Path) -> tuple[DecodedExample, ...]:
    if not path.is_file():
        return ()
    examples: list[DecodedExample] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            fields = json.loads(line)
            references = tuple(map(str, fields["references"]))
            errors = {str(kind): tuple(map(str, slots)) for kind, slots in fields.get("slot_errors", {}).items()}
            examples.append(
                DecodedExample(mr=fields["mr"], output=fields["output"], references=references, slot_errors=errors)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(examples)


def _read_info(checkpoints: Path) -> dict[str, Any]:
    newest = sorted(checkpoints.glob("step-*/info.json"))
    return _read_json(newest[-1]) if newest else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
