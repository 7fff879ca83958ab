"""NIST (Doddington 2002) as the official E2E scorer computes it: mteval-13a tokens, case-insensitive, n up to 5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torso.evaluation.ngrams import Grams, matches, ngrams, tokens_13a
from torso.evaluation.segments import check_segments

ORDER = 5
BETA = -math.log(0.5) / math.log(1.5) ** 2
"""An output of two thirds of the references' length has a brevity penalty of one half."""


@dataclass(frozen=True)
class NistCounts:
    """What segments add up to."""

    information: tuple[float, ...]
    """Of the matching n-grams, by order."""
    totals: tuple[int, ...]
    """n-grams of the output, by order."""
    output_length: int
    reference_length: float
    """Mean over the references."""


def nist_counts(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[NistCounts]:
    """Of each segment; the information weights are those of all references. ValueError unless each has references."""
    check_segments(outputs, references)
    others = [[_words(reference) for reference in rs] for rs in references]
    information = _information([words for rs in others for words in rs])
    return [_count(_words(output), rs, information) for output, rs in zip(outputs, others, strict=True)]


def nist(counts: Sequence[NistCounts]) -> float:
    """Of the segments together; 0 when there is no output at all."""
    length, expected = sum(c.output_length for c in counts), math.fsum(c.reference_length for c in counts)
    if not length or not expected:
        return 0.0
    score = 0.0
    for n in range(ORDER):
        total = sum(c.totals[n] for c in counts)
        score += math.fsum(c.information[n] for c in counts) / total if total else 0.0
    return score * math.exp(-BETA * math.log(min(1.0, length / expected)) ** 2)


def _words(text: str) -> list[str]:
    return [word.lower() for word in tokens_13a(text)]


def _information(texts: Sequence[Sequence[str]]) -> dict[tuple[str, ...], float]:
    """log2(occurrences of its first n - 1 words / occurrences of the n-gram)."""
    counts = Grams()
    for words in texts:
        for n in range(1, ORDER + 1):
            counts.update(ngrams(words, n))
    words_in_all = sum(map(len, texts))
    return {g: math.log2((counts[g[:-1]] if len(g) > 1 else words_in_all) / count) for g, count in counts.items()}


def _count(
    words: Sequence[str], references: Sequence[Sequence[str]], information: dict[tuple[str, ...], float]
) -> NistCounts:
    pairs = [matches(words, references, n) for n in range(1, ORDER + 1)]
    gained = tuple(math.fsum(count * information[gram] for gram, count in found.items()) for found, _ in pairs)
    mean = sum(map(len, references)) / len(references)
    return NistCounts(gained, tuple(counts.total() for _, counts in pairs), len(words), mean)
