"""Which strategy to take, and one sentence on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torso.planner.predict import Prediction
from torso.planner.setting import STRATEGIES, Strategy

WORTH = 0.03
"""A strategy must be faster by this share than one that is simpler (earlier in STRATEGIES) to be taken in its place."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to take."""

    strategy: Strategy | None
    """None: nothing fits."""
    reasons: Mapping[Strategy, str]
    """One sentence a strategy."""


def recommend(predictions: Mapping[Strategy, Prediction]) -> Recommendation:
    """The fastest that fits; of those that are about equally fast, the simplest."""
    fitting = [predictions[name] for name in STRATEGIES if name in predictions and predictions[name].fits]
    if not fitting:
        return Recommendation(strategy=None, reasons={n: _alone(p) for n, p in predictions.items()})
    fastest = min(p.step_seconds for p in fitting)
    chosen = next(p for p in fitting if p.step_seconds * (1.0 - WORTH) <= fastest)
    reasons = {name: _reason(p, chosen, predictions) for name, p in predictions.items()}
    return Recommendation(strategy=chosen.strategy, reasons=reasons)


def _alone(p: Prediction) -> str:
    if p.refusal:
        return f"Not applicable: {p.refusal}."
    return f"Does not fit: {_size(p.memory_bytes)} a device, {_size(p.memory_limit)} are there."


def _reason(p: Prediction, chosen: Prediction, all_of_them: Mapping[Strategy, Prediction]) -> str:
    if p.strategy == chosen.strategy:
        return _why_chosen(p, all_of_them)
    if not p.fits:
        return _alone(p)
    ratio = p.step_seconds / chosen.step_seconds
    if ratio < 1.0 + WORTH:
        return f"About as fast as {chosen.strategy}, which is simpler."
    text = f"Takes {ratio:.2f} times as long as {chosen.strategy}"
    assert p.seconds is not None
    if p.seconds.communication > 0.25 * p.step_seconds:
        share = p.seconds.communication / p.step_seconds
        return f"{text}: {share:.0%} of its step is communication."
    if p.strategy == "single":
        return f"{text}: one device does all of the work."
    return f"{text}."


def _why_chosen(p: Prediction, all_of_them: Mapping[Strategy, Prediction]) -> str:
    """What speaks for it: nothing else fits, or how much faster it is than the next."""
    others = [o for o in all_of_them.values() if o.strategy != p.strategy and o.fits]
    if not others:
        return f"The only one that fits: {_size(p.memory_bytes)} a device."
    next_best = min(others, key=lambda o: o.step_seconds)
    ratio = next_best.step_seconds / p.step_seconds
    if ratio < 1.0 + WORTH:
        return f"As fast as {next_best.strategy}, and simpler."
    text = f"{next_best.strategy}, the next, takes {ratio:.2f} times as long"
    if p.strategy == "single" and next_best.strategy != "split":
        return f"The fastest that fits: the link is too slow for more devices to gain; {text}."
    return f"The fastest that fits: {text}."


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
