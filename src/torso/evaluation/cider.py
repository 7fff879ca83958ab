"""CIDEr-D as the official E2E scorer (and COCO's) defines it: Vedantam et al. 2015, section 6."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from torso.evaluation.ngrams import Grams, ngrams
from torso.evaluation.ptb import ptb_tokens
from torso.evaluation.segments import check_segments

ORDER, SIGMA, SCALE = 4, 6.0, 10.0
Vector = tuple[list[dict[tuple[str, ...], float]], list[float], int]
"""By order: weights and their norm; and the number of bigrams, which stands for the length."""


def cider(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Of each segment; the corpus value is the mean. 0 for an output without tokens.

    Document frequencies are those of the references given, each segment one document, so a segment's value depends on
    the whole set. With a single segment, every frequency is 1 and all values are 0. ValueError unless each output has
    references.
    """
    check_segments(outputs, references)
    grams = [[_grams(ptb_tokens(reference)) for reference in rs] for rs in references]
    frequencies: Grams = Counter(gram for rs in grams for gram in set().union(*rs))
    documents = math.log(len(references)) if references else 0.0
    values = []
    for output, rs in zip(outputs, grams, strict=True):
        vector = _vector(_grams(ptb_tokens(output)), frequencies, documents)
        similarities = [_similarity(vector, _vector(r, frequencies, documents)) for r in rs]
        values.append(SCALE * math.fsum(similarities) / len(similarities))
    return values


def _grams(words: Sequence[str]) -> Grams:
    return sum((ngrams(words, n) for n in range(1, ORDER + 1)), Grams())


def _vector(grams: Grams, frequencies: Grams, documents: float) -> Vector:
    """Term frequency times inverse document frequency."""
    weights: list[dict[tuple[str, ...], float]] = [{} for _ in range(ORDER)]
    for gram, count in grams.items():
        weights[len(gram) - 1][gram] = count * (documents - math.log(max(1.0, frequencies[gram])))
    norms = [math.sqrt(math.fsum(w * w for w in of_order.values())) for of_order in weights]
    return weights, norms, sum(count for gram, count in grams.items() if len(gram) == 2)


def _similarity(output: Vector, reference: Vector) -> float:
    """Mean over orders of the clipped cosine, less for another length."""
    penalty = math.exp(-((output[2] - reference[2]) ** 2) / (2.0 * SIGMA**2))
    total = 0.0
    for mine, others, norm, other_norm in zip(output[0], reference[0], output[1], reference[1], strict=True):
        if norm and other_norm:
            product = math.fsum(min(w, others[gram]) * others[gram] for gram, w in mine.items() if gram in others)
            total += product / (norm * other_norm)
    return penalty * total / ORDER
