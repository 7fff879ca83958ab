"""BLEU (Papineni et al. 2002) by two definitions: the official E2E scorer's, and Hugging Face's. Both are 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torso.evaluation.ngrams import matches, tokens_13a
from torso.evaluation.segments import check_segments

ORDER = 4
TINY = 1e-15
"""What the official scorer takes for no match at all of some order."""


@dataclass(frozen=True)
class BleuCounts:
    """What segments add up to, by n-gram order where it says so."""

    matches: tuple[int, ...]
    totals: tuple[int, ...]
    output_length: int
    reference_length: int
    """Of the reference that the definition compares lengths with."""


def official_counts(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[BleuCounts]:
    """13a tokens, case-insensitive, closest reference length (of equals the shorter). ValueError without references."""

    def closest(output: int, others: Sequence[int]) -> int:
        return min(others, key=lambda length: (abs(length - output), length))

    return _counts(outputs, references, str.lower, closest)


def hf_counts(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[BleuCounts]:
    """13a tokens, case-sensitive, *shortest* reference length. ValueError unless each output has references."""
    return _counts(outputs, references, str, lambda output, others: min(others))


def official_bleu_of(counts: Sequence[BleuCounts]) -> float:
    """Of the segments together; no smoothing beyond `TINY`, which makes a segment without any 4-gram match about 1e-5.

    0 when no word matches, and when the outputs are too short for n-grams of some order (where the original divides
    by 1e-9 in place of 0).
    """
    matched, totals = _sums(counts)
    if matched[0] == 0 or 0 in totals:
        return 0.0
    return _bleu(counts, [max(match, TINY) for match in matched], totals)


def hf_bleu_of(counts: Sequence[BleuCounts]) -> float:
    """Of the segments together, without smoothing: 0 when no n-gram of some order matches."""
    matched, totals = _sums(counts)
    return 0.0 if 0 in matched else _bleu(counts, matched, totals)


def official_bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """`official_bleu_of` all segments."""
    return official_bleu_of(official_counts(outputs, references))


def hf_bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """`hf_bleu_of` all segments."""
    return hf_bleu_of(hf_counts(outputs, references))


def _sums(counts: Sequence[BleuCounts]) -> tuple[list[int], list[int]]:
    matched = [sum(c.matches[n] for c in counts) for n in range(ORDER)]
    return matched, [sum(c.totals[n] for c in counts) for n in range(ORDER)]


def _bleu(counts: Sequence[BleuCounts], matched: Sequence[float], totals: Sequence[int]) -> float:
    length, expected = sum(c.output_length for c in counts), sum(c.reference_length for c in counts)
    log_precision = sum(math.log(m / t) for m, t in zip(matched, totals, strict=True)) / ORDER
    return math.exp(log_precision + min(0.0, 1.0 - expected / length))


def _counts(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    case: Callable[[str], str],
    compared: Callable[[int, Sequence[int]], int],
) -> list[BleuCounts]:
    check_segments(outputs, references)
    found = []
    for output, rs in zip(outputs, references, strict=True):
        words, *others = ([case(word) for word in tokens_13a(text)] for text in (output, *rs))
        pairs = [matches(words, others, n) for n in range(1, ORDER + 1)]
        matched, totals = (tuple(grams.total() for grams in of_order) for of_order in zip(*pairs, strict=True))
        length = compared(len(words), [len(other) for other in others])
        found.append(BleuCounts(matched, totals, len(words), length))
    return found
