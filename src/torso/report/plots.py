"""Loss, gradient norm, throughput and memory by step and by epoch, as SVG that follows the page's colours.

Figures are drawn in placeholder colours; `to_svg` replaces these by CSS variables, so that one picture is
readable on light and on dark pages. `to_png` draws the same figure for people who want a file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from torso.records import EpochRecord, StepRecord
from torso.report.units import number

INK, FAINT, SERIES = "#1c2530", "#d5dae1", ("#2563c9", "#c2560c", "#157a5c", "#8a3ab9", "#8f7a00")
"""Text, grid, and the series; the first two are told apart by lightness too, for people who do not see the hues."""
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--grid)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "torso",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": FAINT,
    "grid.color": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MEGABYTE = 1e6
_SMOOTH_FROM = 40
"""Fewer steps than this are drawn as they are."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a plot; values that are not finite leave a gap."""

    label: str
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What is drawn over steps or epochs."""

    key: str
    """Stable name, for file names and anchors."""
    title: str
    unit: str
    axis: str
    """`step` or `epoch`."""
    positions: Sequence[int]
    lines: tuple[Line, ...]
    limit: float | None = None
    """A horizontal line: where gradients are clipped."""
    shape: Literal["lines", "beside", "bars"] = "lines"
    """beside: lines that may lie on each other, each a little to the side of the one before."""


def step_plots(steps: Sequence[StepRecord], clip_at: float | None = None) -> list[Plot]:
    """Four plots over steps; none when there are no steps."""
    if not steps:
        return []
    at = [s.step for s in steps]
    client = Line(label="client", values=[s.memory_bytes / _MEGABYTE for s in steps])
    server = Line(label="body server", values=[s.server_memory_bytes / _MEGABYTE or math.nan for s in steps])
    return [
        _plot("loss", "step", at, Line(label="loss", values=[s.loss for s in steps])),
        _plot("grad_norm", "step", at, Line(label="norm", values=[s.grad_norm for s in steps]), limit=clip_at),
        _plot("throughput", "step", at, Line(label="tokens/s", values=[s.tokens_per_second for s in steps])),
        _plot("memory", "step", at, client, server),
    ]


def epoch_plots(epochs: Sequence[EpochRecord], clip_at: float | None = None) -> list[Plot]:
    """The same four over epochs."""
    if not epochs:
        return []
    at = [e.epoch for e in epochs]
    mean = Line(label="mean", values=[e.grad_norm_mean for e in epochs])
    largest = Line(label="largest", values=[e.grad_norm_max for e in epochs])
    client = Line(label="client", values=[e.memory_bytes / _MEGABYTE for e in epochs])
    server = Line(label="body server", values=[e.server_memory_bytes / _MEGABYTE or math.nan for e in epochs])
    return [
        _plot("loss", "epoch", at, Line(label="loss", values=[e.loss for e in epochs])),
        _plot("grad_norm", "epoch", at, mean, largest, limit=clip_at),
        _plot("throughput", "epoch", at, Line(label="tokens/s", values=[e.tokens_per_second for e in epochs])),
        _plot("memory", "epoch", at, client, server),
    ]


_TITLES = {
    "loss": ("Loss", "per target token"),
    "grad_norm": ("Gradient norm", "global, before clipping"),
    "throughput": ("Throughput", "real tokens a second"),
    "memory": ("Memory", "largest so far, MB"),
}


def _plot(key: str, axis: str, positions: Sequence[int], *lines: Line, limit: float | None = None) -> Plot:
    title, unit = _TITLES[key]
    known = tuple(line for line in lines if any(map(math.isfinite, line.values)))
    return Plot(key=key, title=title, unit=unit, axis=axis, positions=positions, lines=known, limit=limit)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred mean over the finite ones of `window` neighbours; the window shrinks at both ends."""
    result = []
    for index in range(len(values)):
        reach = min(window // 2, index, len(values) - 1 - index)
        near = [v for v in values[index - reach : index + reach + 1] if math.isfinite(v)]
        result.append(sum(near) / len(near) if near else math.nan)
    return result


def draw(plot: Plot) -> Figure:
    """The figure, in placeholder colours."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for place, line in enumerate(plot.lines):
            if plot.shape == "bars":
                _draw_bars(axes, plot, line, place)
            elif plot.shape == "beside":
                _draw_beside(axes, plot, line, place)
            else:
                _draw_line(axes, plot, line, SERIES[place])
        _draw_limit(axes, plot)
        _dress(axes, plot)
    return figure


def _draw_bars(axes: Axes, plot: Plot, line: Line, place: int) -> None:
    width = 0.82 / len(plot.lines)
    left = place * width - 0.41 + width / 2.0
    at = [position + left for position in plot.positions]
    heights = [value if math.isfinite(value) else 0.0 for value in line.values]
    axes.bar(at, heights, 0.94 * width, color=SERIES[place % len(SERIES)], label=line.label)


def _draw_beside(axes: Axes, plot: Plot, line: Line, place: int) -> None:
    aside = 0.07 * (place - (len(plot.lines) - 1) / 2.0)
    at = [position + aside for position in plot.positions]
    values = [value if math.isfinite(value) else math.nan for value in line.values]
    colour = SERIES[place % len(SERIES)]
    axes.plot(at, values, color=colour, linewidth=1.2, marker="o", markersize=4.5, label=line.label)


def _draw_line(axes: Axes, plot: Plot, line: Line, colour: str) -> None:
    values = [v if math.isfinite(v) else math.nan for v in line.values]
    if plot.axis == "epoch" or len(values) < 3:
        axes.plot(plot.positions, values, color=colour, marker="o", markersize=5, linewidth=1.6, label=line.label)
        _label_points(axes, plot.positions, values, colour)
    elif len(values) < _SMOOTH_FROM or plot.key == "memory":
        axes.plot(plot.positions, values, color=colour, linewidth=1.6, label=line.label)
    else:
        window = max(5, len(values) // 25)
        axes.plot(plot.positions, values, color=colour, linewidth=0.7, alpha=0.3, label="each step")
        axes.plot(plot.positions, smooth(values, window), color=colour, linewidth=1.9, label=f"mean of {window}")


def _label_points(axes: Axes, positions: Sequence[int], values: Sequence[float], colour: str) -> None:
    """Write values beside points while there is room for them."""
    if len(positions) > 6:
        return
    for position, value in zip(positions, values, strict=True):
        if math.isfinite(value):
            text = number(value, 0 if abs(value) >= 100 else 3)
            axes.annotate(
                text,
                (position, value),
                (0, 7),
                textcoords="offset points",
                ha="center",
                color=colour,
                fontsize=8.5,
            )


def _draw_limit(axes: Axes, plot: Plot) -> None:
    """Where gradients are clipped, unless that lies far outside what is drawn."""
    values = [v for line in plot.lines for v in line.values if math.isfinite(v)]
    if plot.limit and values and min(values) / 3.0 <= plot.limit <= max(values) * 3.0:
        axes.axhline(plot.limit, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label=f"clipped at {plot.limit:g}")


def _dress(axes: Axes, plot: Plot) -> None:
    axes.set_title(f"{plot.title} by {plot.axis}", loc="left", fontsize=11, fontweight="bold", pad=10)
    axes.set_xlabel(plot.axis)
    axes.set_ylabel(plot.unit)
    axes.grid(axis="y", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.margins(x=0.2 if plot.axis == "epoch" else 0.02, y=0.18)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if plot.axis == "epoch" and len(plot.positions) <= 6:
        axes.set_xticks(list(plot.positions))
    if plot.axis == "epoch" or plot.key in ("memory", "throughput"):
        _from_zero(axes, plot)
    if plot.shape != "lines":
        axes.figure.legend(frameon=False, fontsize=8.5, loc="outside right upper")
    elif len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=8.5, loc="best")


def _from_zero(axes: Axes, plot: Plot) -> None:
    """Few points, or values that hardly move, must not look like a landslide."""
    values = [v for line in plot.lines for v in line.values if math.isfinite(v)]
    axes.set_ylim(0.0, 1.25 * max(values, default=0.0) or 1.0)


def to_svg(plot: Plot) -> str:
    """An inline `<svg>` element: no XML header, colours as CSS variables, the same bytes each time."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": f"torso-{plot.key}-{plot.axis}"}):
        draw(plot).savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    return _label(_without_metadata(svg), f"{plot.title} by {plot.axis}")


def _label(svg: str, text: str) -> str:
    """For screen readers; the size comes from the page."""
    start, end = svg.index("<svg"), svg.index(">")
    view_box = svg[svg.index('viewBox="') : svg.index('"', svg.index('viewBox="') + 9) + 1]
    return (
        f'{svg[:start]}<svg role="img" aria-label="{text}" {view_box} xmlns:xlink="http://www.w3.org/1999/xlink">'
        + (svg[end + 1 :])
    )


def to_png(plot: Plot, dots_per_inch: int = 120) -> bytes:
    """The figure on white."""
    figure = draw(plot)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, facecolor="white")
    return buffer.getvalue()


def _without_metadata(svg: str) -> str:
    """Drop the block that names the drawing program and its sites."""
    start, end = svg.find("<metadata>"), svg.find("</metadata>")
    return svg if start < 0 else svg[:start] + svg[end + len("</metadata>") :]
