"""Which checkpoint is the best one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from torso.records import EpochRecord, EvaluationRecord, Record

PERPLEXITY, LOSS = "perplexity", "epoch loss"
LOWER_IS_BETTER = frozenset({"slot_error_rate"})
"""Of the scores; every other one is the better the higher it is."""


def best_step(records: Sequence[Record], saved: Collection[int], best_by: str = PERPLEXITY) -> int | None:
    """The step of `best`; None when nothing is known."""
    found = best(records, saved, best_by)
    return None if found is None else found[0]


def best(records: Sequence[Record], saved: Collection[int], best_by: str = PERPLEXITY) -> tuple[int, str] | None:
    """The saved step that is best on dev, and by what: the lowest perplexity, or the best value of a named score.

    While no saved step has that score it goes by perplexity on dev, and without any by the lowest epoch loss. Scores
    are those of greedy outputs; evaluations of the base model, or of a part of dev, do not count. Of equals the newest.
    None when nothing is known.
    """
    on_dev = [r for r in records if isinstance(r, EvaluationRecord) and r.can_choose]
    sign = 1.0 if best_by in LOWER_IS_BETTER else -1.0
    known = {
        best_by: {r.step: sign * r.scores[best_by] for r in on_dev if best_by in r.scores and not r.decoding},
        PERPLEXITY: {r.step: r.perplexity for r in on_dev},
        LOSS: {r.step: r.loss for r in records if isinstance(r, EpochRecord)},
    }
    found = ((_lowest(values, saved), measure) for measure, values in known.items())
    return next(((step, measure) for step, measure in found if step is not None), None)


def _lowest(values: dict[int, float], saved: Collection[int]) -> int | None:
    known = {step: value for step, value in values.items() if step in saved and math.isfinite(value)}
    return min(known, key=lambda step: (known[step], -step), default=None)
