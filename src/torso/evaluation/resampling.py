"""How sure a score is: intervals by bootstrap, differences by approximate randomisation. Segments are resampled.

Both work on additive statistics, so that thousands of resamples cost no text. That is exact for every metric but two:
NIST's information weights and CIDEr's document frequencies stay those of the whole set of references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from torso.evaluation.metrics import Measured
from torso.evaluation.segments import Array

NUM_TRIALS = 10_000
"""Of a test."""
CONFIDENCE = 0.95
_BLOCK = 4_000_000
"""Numbers drawn at once."""
_EPSILON = 1e-12
"""Differences that are equal but for rounding count as equal."""


def intervals(measured: Sequence[Measured], num: int, seed: int) -> Array:
    """[M, 2]: the percentile interval (2.5 %, 97.5 %) of each metric over `num` samples of segments with replacement.

    Efron 1979. All metrics see the same samples.
    """
    return _percentiles(_resampled(measured, num, seed))


def difference_intervals(one: Sequence[Measured], other: Sequence[Measured], num: int, seed: int) -> Array:
    """[M, 2]: the same of `other` minus `one`, both on the same samples (Koehn 2004: paired bootstrap)."""
    return _percentiles(_resampled(other, num, seed) - _resampled(one, num, seed))


def p_values(one: Sequence[Measured], other: Sequence[Measured], seed: int, num: int = NUM_TRIALS) -> list[float]:
    """Of each metric: how often a difference at least as large comes about when outputs change sides by chance.

    Approximate randomisation, two-sided (Noreen 1989; Riezler and Maxwell 2005), with 1 added above and below.
    """
    ours, theirs = _stacked(one), _stacked(other)
    observed = np.abs(_values(other, theirs.sum(axis=0)) - _values(one, ours.sum(axis=0)))

    def draw(random: np.random.Generator, rows: int) -> Array:
        return random.integers(0, 2, size=(rows, len(ours))).astype(np.float64)

    as_large = np.zeros(len(one))
    for swapped in _drawn(draw, len(ours), num, seed):
        moved = swapped @ (theirs - ours)
        gaps = _values(other, theirs.sum(axis=0) - moved) - _values(one, ours.sum(axis=0) + moved)
        as_large += (np.abs(gaps) >= observed - _EPSILON).sum(axis=0)
    return list(map(float, (as_large + 1.0) / (num + 1.0)))


def _resampled(measured: Sequence[Measured], num: int, seed: int) -> Array:
    """[num, M]"""
    statistics = _stacked(measured)
    size = len(statistics)

    def draw(random: np.random.Generator, rows: int) -> Array:
        return random.multinomial(size, np.full(size, 1.0 / size), size=rows).astype(np.float64)

    return np.concatenate([_values(measured, counts @ statistics) for counts in _drawn(draw, size, num, seed)])


def _drawn(draw: Callable[[np.random.Generator, int], Array], size: int, num: int, seed: int) -> Iterator[Array]:
    """`num` rows of `size` numbers, in blocks; the block's size changes nothing that is drawn."""
    random = np.random.default_rng(seed)
    rows = max(1, _BLOCK // max(1, size))
    for start in range(0, num, rows):
        yield draw(random, min(rows, num - start))


def _stacked(measured: Sequence[Measured]) -> Array:
    """[N, sum of K]"""
    return np.concatenate([m.statistics for m in measured], axis=1)


def _values(measured: Sequence[Measured], sums: Array) -> Array:
    """[..., sum of K] → [..., M]"""
    ends = np.cumsum([m.statistics.shape[1] for m in measured])[:-1]
    parts = np.split(sums, ends, axis=-1)
    return np.stack([m.metric.of(part) for m, part in zip(measured, parts, strict=True)], axis=-1)


def _percentiles(values: Array) -> Array:
    tail = 50.0 * (1.0 - CONFIDENCE)
    return np.asarray(np.percentile(values, [tail, 100.0 - tail], axis=0).T)
