"""NIST (Doddington 2002) as the official E2E scorer computes it: mteval-13a tokens, case-insensitive, n up to 5.

Statistics are [N, 12]: information of the matching n-grams of orders 1 to 5, n-grams of the output, its length, and the
mean length of its references.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from torso.evaluation.segments import Array, check_segments, mteval_tokens

ORDER = 5
BETA = -math.log(0.5) / math.log(1.5) ** 2
"""An output of two thirds of the references' length has a brevity penalty of one half."""
Gram = tuple[str, ...]


def nist_statistics(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
    """[N, 12]; the information weights are those of all references. ValueError unless each output has references."""
    check_segments(outputs, references)
    others = [[_grams(mteval_tokens(r, True)) for r in rs] for rs in references]
    information = _information([grams for rs in others for grams in rs])
    rows = [_row(_grams(mteval_tokens(o, True)), rs, information) for o, rs in zip(outputs, others, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(-1, 2 * ORDER + 2)


def nist_segments(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Of each segment by itself, as the official scorer has it: the weights are those of its own references."""
    check_segments(outputs, references)
    alone = [nist_statistics([o], [rs]) for o, rs in zip(outputs, references, strict=True)]
    return [float(nist_of(statistics[0])) for statistics in alone]


def nist_of(sums: Array) -> Array:
    """[..., 12] → [...]; 0 without any output or references, and an order without n-grams adds nothing."""
    gained, totals = sums[..., :ORDER], sums[..., ORDER : 2 * ORDER]
    length, expected = sums[..., 2 * ORDER], sums[..., 2 * ORDER + 1]
    defined = (length > 0) & (expected > 0)
    means = np.divide(gained, totals, out=np.zeros_like(gained), where=totals > 0).sum(axis=-1)
    shorter = np.divide(length, expected, out=np.ones_like(length), where=defined)
    penalty = np.exp(-BETA * np.log(np.minimum(1.0, shorter)) ** 2)
    return np.asarray(np.where(defined, means * penalty, 0.0))


def _information(texts: Sequence[Counter[Gram]]) -> dict[Gram, float]:
    """log2(occurrences of its first n - 1 words / occurrences of the n-gram)."""
    counts: dict[Gram, int] = {}
    for grams in texts:
        for gram, count in grams.items():
            counts[gram] = counts.get(gram, 0) + count
    words_in_all = sum(count for gram, count in counts.items() if len(gram) == 1)
    return {g: math.log2((counts[g[:-1]] if len(g) > 1 else words_in_all) / count) for g, count in counts.items()}


def _row(mine: Counter[Gram], references: Sequence[Counter[Gram]], information: dict[Gram, float]) -> tuple[float, ...]:
    gained, totals = [0.0] * ORDER, [0] * ORDER
    for gram, count in mine.items():
        matching = min(count, max(reference.get(gram, 0) for reference in references))
        totals[len(gram) - 1] += count
        gained[len(gram) - 1] += matching * information[gram] if matching else 0.0
    return (*gained, *totals, totals[0], sum(map(_length, references)) / len(references))


def _length(grams: Counter[Gram]) -> int:
    return sum(count for gram, count in grams.items() if len(gram) == 1)


def _grams(words: Sequence[str]) -> Counter[Gram]:
    return Counter(gram for n in range(1, ORDER + 1) for gram in zip(*(words[i:] for i in range(n)), strict=False))
