"""BLEU by two definitions: the official E2E scorer's, and Hugging Face's. Both are 0 to 1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from torso.evaluation.segments import check_segments

ORDER = 4


def official_bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """mteval-13a tokens, case-insensitive, closest reference length, no smoothing (as sacrebleu with lower-casing).

    0 for empty outputs. ValueError unless each output has references.
    """
    check_segments(outputs, references)
    scorer = BLEU(lowercase=True, smooth_method="none", force=True)
    longest = max((len(rs) for rs in references), default=0)
    # sacrebleu wants one stream a reference; None where a segment has fewer
    streams: list[Any] = [[rs[i] if i < len(rs) else None for rs in references] for i in range(longest)]
    return float(scorer.corpus_score(list(outputs), streams).score) / 100.0 if outputs else 0.0


def hf_bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """13a tokens, case-sensitive, *shortest* reference length, no smoothing (Papineni et al. 2002 otherwise).

    0 when no n-gram of some order matches, also for empty outputs. ValueError unless each output has references.
    """
    check_segments(outputs, references)
    tokenize: Callable[[str], str] = Tokenizer13a()  # type: ignore[no-untyped-call]
    matches, totals, output_length, reference_length = [0] * ORDER, [0] * ORDER, 0, 0
    for output, rs in zip(outputs, references, strict=True):
        words, others = tokenize(output).split(), [tokenize(r).split() for r in rs]
        output_length += len(words)
        reference_length += min(map(len, others))
        for n in range(1, ORDER + 1):
            matched, total = _matches(words, others, n)
            matches[n - 1] += matched
            totals[n - 1] += total
    if 0 in matches or not output_length:
        return 0.0
    log_precision = sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / ORDER
    return math.exp(log_precision + min(0.0, 1.0 - reference_length / output_length))


def _matches(words: Sequence[str], references: Sequence[Sequence[str]], n: int) -> tuple[int, int]:
    """n-grams of the output that occur in a reference, each counted at most as often as there; and all of them."""
    counts, best = _ngrams(words, n), Counter[tuple[str, ...]]()
    for reference in references:
        best |= _ngrams(reference, n)
    return (counts & best).total(), counts.total()


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
