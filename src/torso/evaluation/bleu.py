"""BLEU (Papineni et al. 2002) by two definitions: the official E2E scorer's, and Hugging Face's. Both are 0 to 1.

Statistics are [N, 10]: matching n-grams of orders 1 to 4, n-grams of the output, its length, and the length of the
reference that the definition compares it with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from torso.evaluation.ngrams import matches, mteval_tokens
from torso.evaluation.segments import Array, check_segments

ORDER = 4
TINY = 1e-15
"""What the official scorer takes for no match at all of some order."""


def official_bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """`official_bleu_of` all segments."""
    return float(official_bleu_of(official_bleu_statistics(outputs, references).sum(axis=0)))


def hf_bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """`hf_bleu_of` all segments."""
    return float(hf_bleu_of(hf_bleu_statistics(outputs, references).sum(axis=0)))


def official_bleu_statistics(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
    """13a tokens, case-insensitive, closest reference length (of equals the shorter). ValueError without references."""

    def closest(output: int, others: Sequence[int]) -> int:
        return min(others, key=lambda length: (abs(length - output), length))

    return _statistics(outputs, references, True, closest)


def hf_bleu_statistics(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
    """13a tokens, case-sensitive, *shortest* reference length. ValueError unless each output has references."""
    return _statistics(outputs, references, False, lambda output, others: min(others))


def official_bleu_of(sums: Array) -> Array:
    """[..., 10] → [...]. No smoothing beyond `TINY`, which makes a segment without any 4-gram match nearly 0.

    0 when no word matches, and when the outputs are too short for n-grams of some order (where the original divides
    by 1e-9 in place of 0).
    """
    matches, totals = sums[..., :ORDER], sums[..., ORDER : 2 * ORDER]
    return _bleu(sums, np.maximum(matches, TINY), totals, (matches[..., 0] > 0) & (totals > 0).all(axis=-1))


def official_sentence_bleu_of(sums: Array) -> Array:
    """[..., 10] → [...]: the official scorer's `sentBLEU` of single segments, 1 added to all matches and totals.

    0 for an output without tokens.
    """
    return _bleu(sums, sums[..., :ORDER] + 1.0, sums[..., ORDER : 2 * ORDER] + 1.0, sums[..., 2 * ORDER] > 0)


def hf_bleu_of(sums: Array) -> Array:
    """[..., 10] → [...]. Without smoothing: 0 when no n-gram of some order matches."""
    matches = sums[..., :ORDER]
    return _bleu(sums, matches, sums[..., ORDER : 2 * ORDER], (matches > 0).all(axis=-1))


def _bleu(sums: Array, matches: Array, totals: Array, defined: npt.ArrayLike) -> Array:
    """Geometric mean of the precisions, less for a short output; 0 where it is not defined."""
    defined = np.asarray(defined)
    precisions = np.divide(matches, totals, out=np.ones_like(totals), where=defined[..., None])
    length, expected = sums[..., 2 * ORDER], sums[..., 2 * ORDER + 1]
    log_penalty = np.minimum(0.0, 1.0 - expected / np.maximum(length, 1.0))
    return np.asarray(np.where(defined, np.exp(np.log(precisions).mean(axis=-1) + log_penalty), 0.0))


def _statistics(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    lower: bool,
    compared: Callable[[int, Sequence[int]], int],
) -> Array:
    check_segments(outputs, references)
    rows = []
    for output, rs in zip(outputs, references, strict=True):
        words, others = mteval_tokens(output, lower), [mteval_tokens(r, lower) for r in rs]
        pairs = [matches(words, others, n) for n in range(1, ORDER + 1)]
        length = compared(len(words), [len(other) for other in others])
        rows.append(
            (*(found.total() for found, _ in pairs), *(grams.total() for _, grams in pairs), len(words), length)
        )
    return np.array(rows, dtype=np.float64).reshape(-1, 2 * ORDER + 2)
