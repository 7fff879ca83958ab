"""ROUGE-L as the official E2E scorer (and COCO's) defines it."""

from __future__ import annotations

from collections.abc import Sequence

from torso.evaluation.ptb import ptb_tokens
from torso.evaluation.segments import check_segments

BETA = 1.2


def rouge_l(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Of each segment: F with beta 1.2 of the best precision and the best recall, each over all references.

    Lin 2004, equation 4, with the longest common subsequence of PTB tokens. 0 for an output without tokens; the corpus
    value is the mean. ValueError unless each output has references.
    """
    check_segments(outputs, references)
    return [_segment(output, rs) for output, rs in zip(outputs, references, strict=True)]


def _segment(output: str, references: Sequence[str]) -> float:
    words, others = ptb_tokens(output), [ptb_tokens(reference) for reference in references]
    if not words:
        return 0.0
    common = [(_longest_common(words, other), len(other)) for other in others]
    precision = max(length for length, _ in common) / len(words)
    recall = max((length / size for length, size in common if size), default=0.0)
    if precision == 0.0 or recall == 0.0:
        return 0.0
    return (1.0 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, by bits: Crochemore et al. 2001.

    Bit i of `row` is 0 where the length of the subsequence with the first i + 1 words rises.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(one)) - 1
    row = full
    for word in other:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()
