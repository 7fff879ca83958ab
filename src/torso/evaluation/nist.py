"""NIST (Doddington 2002) as the official E2E scorer computes it: mteval-13a tokens, case-insensitive, n up to 5.

Statistics are [N, 12]: information of the matching n-grams of orders 1 to 5, n-grams of the output, its length, and the
mean length of its references.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torso.evaluation.ngrams import Grams, matches, mteval_tokens, ngrams
from torso.evaluation.segments import Array, check_segments

ORDER = 5
BETA = -math.log(0.5) / math.log(1.5) ** 2
"""An output of two thirds of the references' length has a brevity penalty of one half."""
Gram = tuple[str, ...]


def nist_statistics(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
    """[N, 12]; the information weights are those of all references. ValueError unless each output has references."""
    check_segments(outputs, references)
    others = [[mteval_tokens(r, True) for r in rs] for rs in references]
    information = _information([words for rs in others for words in rs])
    rows = [_row(mteval_tokens(o, True), rs, information) for o, rs in zip(outputs, others, strict=True)]
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


def _information(texts: Sequence[Sequence[str]]) -> dict[Gram, float]:
    """log2(occurrences of its first n - 1 words / occurrences of the n-gram)."""
    counts = Grams()
    for words in texts:
        for n in range(1, ORDER + 1):
            counts.update(ngrams(words, n))
    words_in_all = sum(map(len, texts))
    return {g: math.log2((counts[g[:-1]] if len(g) > 1 else words_in_all) / count) for g, count in counts.items()}


def _row(
    words: Sequence[str], references: Sequence[Sequence[str]], information: dict[Gram, float]
) -> tuple[float, ...]:
    pairs = [matches(words, references, n) for n in range(1, ORDER + 1)]
    gained = (math.fsum(count * information[gram] for gram, count in found.items()) for found, _ in pairs)
    mean = sum(map(len, references)) / len(references)
    return (*gained, *(grams.total() for _, grams in pairs), len(words), mean)
