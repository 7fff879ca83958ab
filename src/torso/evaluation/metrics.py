"""Every metric of one set of outputs: its value, each segment's, and what resampling needs.

A metric is a function of statistics that segments add up to; for most it is a mean. So a resampled set is a weighted
sum, exact and cheap. CIDEr's document frequencies are those of the whole set, in every resample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from torso.errors import MissingResourceError
from torso.evaluation import nist as nists
from torso.evaluation.bleu import ORDER, BleuCounts, hf_bleu_of, hf_counts, official_bleu_of, official_counts
from torso.evaluation.cider import cider
from torso.evaluation.meteor import hf_meteor_segments
from torso.evaluation.nist import NistCounts, nist, nist_counts
from torso.evaluation.official_meteor import meteor_command, official_meteor
from torso.evaluation.rouge import rouge_l
from torso.evaluation.slot_errors import slot_errors

Floats = np.ndarray[Any, np.dtype[np.float64]]
SIGNATURES = {
    "official_bleu": "BLEU-4, mteval-13a tokens, lower-cased, closest reference, no smoothing; 0 to 1",
    "official_nist": "NIST-5, mteval-13a tokens, lower-cased, mean reference length",
    "official_meteor": "METEOR 1.5 (Java), English, normalised, PTB tokens, lower-cased; 0 to 1",
    "official_rouge_l": "ROUGE-L, beta 1.2, PTB tokens, lower-cased, mean of segments; 0 to 1",
    "official_cider": "CIDEr-D, PTB tokens, lower-cased, frequencies from these references, mean of segments; 0 to 10",
    "hf_bleu": "Hugging Face BLEU-4, 13a tokens, cased, shortest reference, no smoothing; 0 to 1",
    "hf_meteor": "Hugging Face METEOR (NLTK), WordNet 3.0, lower-cased, mean of segments; 0 to 1",
    "slot_error_rate": "missing, added and wrong slots / slots of the inputs, by Torso's rules for E2E; 0 is best",
}


@dataclass(frozen=True)
class Metric:
    """One metric of one set of outputs."""

    name: str
    value: float
    segments: tuple[float, ...]
    statistics: Floats | None
    """[segments, k]; None where the metric cannot be resampled here."""
    combine: Callable[[Floats], float]
    """Added-up statistics [k] to the value."""

    @property
    def signature(self) -> str:
        """Definition, case, tokens, and which METEOR."""
        return SIGNATURES[self.name]


@dataclass(frozen=True)
class Metrics:
    """What was computed, in the order of SIGNATURES, and why the rest was not."""

    computed: tuple[Metric, ...]
    skipped: dict[str, str]

    @property
    def values(self) -> dict[str, float]:
        """By name."""
        return {metric.name: metric.value for metric in self.computed}


def measure(outputs: Sequence[str], references: Sequence[Sequence[str]], mrs: Sequence[str] | None = None) -> Metrics:
    """All metrics; ValueError unless each output has references. The slot error rate needs E2E's inputs."""
    makers: dict[str, Callable[[], Metric]] = {
        "official_bleu": lambda: _bleu("official_bleu", official_counts(outputs, references), official_bleu_of),
        "official_nist": lambda: _nist(outputs, references),
        "official_meteor": lambda: _official_meteor(outputs, references),
        "official_rouge_l": lambda: _mean("official_rouge_l", rouge_l(outputs, references)),
        "official_cider": lambda: _mean("official_cider", cider(outputs, references)),
        "hf_bleu": lambda: _bleu("hf_bleu", hf_counts(outputs, references), hf_bleu_of),
        "hf_meteor": lambda: _mean("hf_meteor", hf_meteor_segments(outputs, references)),
        "slot_error_rate": lambda: _slot_errors(mrs, outputs),
    }
    computed, skipped = [], {}
    for name, make in makers.items():
        try:
            computed.append(make())
        except MissingResourceError as error:
            skipped[name] = str(error)
    return Metrics(tuple(computed), skipped)


def _mean(name: str, segments: Sequence[float]) -> Metric:
    statistics = np.array([[value, 1.0] for value in segments]).reshape(-1, 2)
    return _of(name, segments, statistics, lambda sums: float(sums[0] / sums[1]) if sums[1] else 0.0)


def _bleu(name: str, counts: Sequence[BleuCounts], bleu: Callable[[Sequence[BleuCounts]], float]) -> Metric:
    def combine(sums: Floats) -> float:
        whole = [int(value) for value in sums]
        return bleu([BleuCounts(tuple(whole[:ORDER]), tuple(whole[ORDER : 2 * ORDER]), whole[-2], whole[-1])])

    return _of(name, [bleu([count]) for count in counts], _rows(counts, 2 * ORDER + 2), combine)


def _nist(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Metric:
    """A segment's own value is with the weights of its own references, as the official scorer's."""
    n = nists.ORDER

    def combine(sums: Floats) -> float:
        totals = tuple(int(total) for total in sums[n : 2 * n])
        return nist([NistCounts(tuple(map(float, sums[:n])), totals, int(sums[-2]), float(sums[-1]))])

    alone = [nist(nist_counts([output], [rs])) for output, rs in zip(outputs, references, strict=True)]
    return _of("official_nist", alone, _rows(nist_counts(outputs, references), 2 * n + 2), combine)


def _official_meteor(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Metric:
    meteor_command()
    value, segments = official_meteor(outputs, references)
    return Metric("official_meteor", value, tuple(segments), None, lambda sums: value)


def _slot_errors(mrs: Sequence[str] | None, outputs: Sequence[str]) -> Metric:
    errors = [slot_errors(mr, output) for mr, output in zip(mrs or [], outputs, strict=False)]
    found = [e for e in errors if e is not None]
    if not mrs or len(found) < len(outputs):
        raise MissingResourceError("the slot error rate needs E2E's inputs", "Give references with their mr, or --mrs.")
    statistics = np.array([[e.num, e.num_slots] for e in found], dtype=float).reshape(-1, 2)
    segments = [e.num / e.num_slots for e in found]
    return _of("slot_error_rate", segments, statistics, lambda s: float(s[0] / s[1]) if s[1] else 0.0)


def _of(name: str, segments: Sequence[float], statistics: Floats, combine: Callable[[Floats], float]) -> Metric:
    return Metric(name, combine(statistics.sum(axis=0)), tuple(segments), statistics, combine)


def _rows(counts: Sequence[BleuCounts] | Sequence[NistCounts], width: int) -> Floats:
    """One row a segment: matches, totals, the two lengths."""
    rows = [[*fields[0], *fields[1], *fields[2:]] for fields in map(astuple, counts)]
    return np.array(rows, dtype=float).reshape(-1, width)
