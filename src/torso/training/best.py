"""Which checkpoint is the best one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from torso.records import EpochRecord, EvaluationRecord, Record


def best_step(records: Sequence[Record], saved: Collection[int]) -> int | None:
    """The saved step with the lowest perplexity on dev; while no saved step was evaluated, the lowest epoch loss.

    Evaluations of the base model, or of a part of dev, do not count. Of equals the newest. None when nothing is known.
    """
    perplexity = {r.step: r.perplexity for r in records if isinstance(r, EvaluationRecord) and _counts(r)}
    loss = {r.step: r.loss for r in records if isinstance(r, EpochRecord)}
    best = _lowest(perplexity, saved)
    return _lowest(loss, saved) if best is None else best


def _counts(record: EvaluationRecord) -> bool:
    return record.subset == "dev" and record.adapted and not record.partial


def _lowest(values: dict[int, float], saved: Collection[int]) -> int | None:
    known = {step: value for step, value in values.items() if step in saved and math.isfinite(value)}
    return min(known, key=lambda step: (known[step], -step), default=None)
