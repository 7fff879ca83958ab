"""The schema of a run's log, `metrics.jsonl`: one JSON object a line, told apart by `kind`.

JSON has no word for numbers that are not finite: they are written as null and read as NaN.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step."""

    kind: ClassVar[str] = "step"

    step: int
    """Number of updates done, this one included."""
    epoch: int
    """Epoch that the step belongs to, from 1."""
    loss: float
    """Sum of the losses of all target tokens, divided by their number."""
    target_tokens: int
    real_tokens: int
    """Tokens without padding."""
    padded_tokens: int
    """Tokens with padding."""
    tokens_per_second: float
    """Real tokens a second."""
    grad_norm: float
    """Global norm over head, body and tail before clipping."""
    clip_factor: float
    learning_rate: float
    skipped: bool
    """Whether the update was left out because a gradient was not finite."""
    seconds: float
    memory_bytes: int
    """Largest resident (CPU) or device memory that a rank had within the step; of all so far in older logs."""
    server_memory_bytes: int
    """The largest of a body worker so far, 0 where there is none."""
    bytes_sent: int
    """By all ranks in this step, without checkpoints: to a body server, or to each other under another strategy."""
    bytes_received: int
    memory_sum_bytes: int = 0
    """Of all ranks together; 0 in older logs."""
    bytes_sent_max: int = 0
    """By the rank that sent the most."""
    bytes_received_max: int = 0


def grad_norms(steps: Sequence[StepRecord]) -> list[float]:
    """Of the steps whose update was made; not a number where none was."""
    return [step.grad_norm for step in steps if not step.skipped] or [math.nan]


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One epoch: totals over its steps that this log holds."""

    kind: ClassVar[str] = "epoch"

    epoch: int
    step: int
    """The epoch's last step."""
    loss: float
    """Total loss / total target tokens."""
    grad_norm_mean: float
    grad_norm_max: float
    target_tokens: int
    real_tokens: int
    padded_tokens: int
    seconds: float
    tokens_per_second: float
    memory_bytes: int
    server_memory_bytes: int
    bytes_sent: int
    bytes_received: int
    memory_sum_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """One evaluation; the outputs lie in `evaluation/`."""

    kind: ClassVar[str] = "evaluation"

    step: int
    subset: str
    adapted: bool
    """False: the base model without its adapter."""
    perplexity: float
    scores: dict[str, float]
    """By name of the definition, e.g. `hf_bleu`, `official_bleu`, `hf_meteor`; see docs/metrics.md."""
    partial: bool = False
    """Whether only the first inputs were evaluated."""
    decoding: str = ""
    """How outputs were decoded, e.g. `beam10-lp0.9-ng4`; empty for greedily."""
    seconds: float = 0.0

    @property
    def can_choose(self) -> bool:
        """Whether it says how good a checkpoint is: of the adapted model, on the whole of dev."""
        return self.subset == "dev" and self.adapted and not self.partial


@dataclass(frozen=True, kw_only=True)
class SaveRecord:
    """One checkpoint, written after it is whole."""

    kind: ClassVar[str] = "save"

    step: int
    seconds: float
    """From the request for the body's state until it is verified on disk; not part of any step's seconds."""
    memory_bytes: int = 0
    """Peak of the rank that writes, from then until then; 0 in older logs."""


Record = StepRecord | EpochRecord | EvaluationRecord | SaveRecord
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in (StepRecord, EpochRecord, EvaluationRecord, SaveRecord)}


def to_line(record: Record) -> str:
    """One line of the log, with its end of line."""
    return json.dumps({"kind": record.kind, **finite(dataclasses.asdict(record))}, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The value as JSON can hold it: in dictionaries and lists too, null stands for what is not finite."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_line(line: str) -> Record:
    """The record in one line. Raises ValueError (unknown kind, missing field, cut line)."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"not a record: {line[:80]!r}")
    cls = _KINDS.get(fields.pop("kind", ""))
    if cls is None:
        raise ValueError(f"not a record: {line[:80]!r}")
    try:
        record: Record = cls(**_numbers(fields))
    except TypeError as error:
        raise ValueError(f"not a {cls.kind} record: {error}") from None
    return record


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """`finite` undone, as far as it can be."""
    return {
        name: _numbers(value) if isinstance(value, dict) else math.nan if value is None else value
        for name, value in fields.items()
    }
