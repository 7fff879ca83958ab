"""Five plots over epochs, as the paper's Figures 3 to 7: lines where strategies agree, bars where they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torso.report.comparison.tables import MEGABYTE
from torso.report.comparison.trials import EpochFigures, Group
from torso.report.plots import Line, Plot

_FIGURES: tuple[tuple[str, str, str, Literal["beside", "bars"], Callable[[EpochFigures], float]], ...] = (
    ("loss", "Loss", "per target token", "beside", lambda e: e.loss),
    ("grad_norm", "Gradient norm", "mean, before clipping", "beside", lambda e: e.grad_norm_mean),
    ("time", "Training time", "seconds, without warm-up", "bars", lambda e: e.seconds),
    ("memory", "Peak memory", "largest rank, MB", "bars", lambda e: e.memory_bytes / MEGABYTE),
    ("throughput", "Throughput", "real tokens a second", "bars", lambda e: e.real_tokens_per_second),
)


def group_plots(group: Group) -> list[Plot]:
    """None when no strategy has figures."""
    if not group.done:
        return []
    positions = [epoch.epoch for epoch in max((r.epochs for r in group.done), key=len)]
    return [
        Plot(
            key=key,
            title=title,
            unit=unit,
            axis="epoch",
            positions=positions,
            lines=tuple(Line(label=r.trial.strategy, values=[of(e) for e in r.epochs]) for r in group.done),
            shape=shape,
        )
        for key, title, unit, shape, of in _FIGURES
    ]
