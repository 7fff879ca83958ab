from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from torso.records import EpochRecord, StepRecord
from torso.report.plots import FAINT, INK, SERIES, epoch_plots, smooth, step_plots, to_png, to_svg


@pytest.fixture
def steps(step: Callable[..., StepRecord]) -> list[StepRecord]:
    return [step(n) for n in range(1, 61)]


@pytest.fixture
def epochs(epoch: Callable[..., EpochRecord]) -> list[EpochRecord]:
    return [epoch(1, 30), epoch(2, 60)]


def test_each_quantity_is_drawn_by_step_and_by_epoch(steps: list[StepRecord], epochs: list[EpochRecord]) -> None:
    keys = ["loss", "grad_norm", "throughput", "memory"]
    assert [p.key for p in step_plots(steps)] == keys
    assert [p.key for p in epoch_plots(epochs)] == keys
    assert step_plots([]) == []
    assert epoch_plots([]) == []


def test_memory_shows_client_and_server_where_known(step: Callable[..., StepRecord], steps: list[StepRecord]) -> None:
    assert [line.label for line in step_plots(steps)[3].lines] == ["client", "body server"]
    alone = [step(n, server_memory_bytes=0) for n in range(1, 4)]
    assert [line.label for line in step_plots(alone)[3].lines] == ["client"]


def test_svg_is_well_formed_and_takes_its_colours_from_the_page(
    steps: list[StepRecord], epochs: list[EpochRecord]
) -> None:
    for plot in step_plots(steps, clip_at=1.0) + epoch_plots(epochs, clip_at=1.0):
        svg = to_svg(plot)
        ET.fromstring(svg)
        assert "var(--ink)" in svg
        assert "var(--series-1)" in svg
        assert not any(colour in svg for colour in (INK, FAINT, *SERIES))
        assert "<metadata>" not in svg
        assert "<?xml" not in svg


def test_the_same_log_gives_the_same_bytes(steps: list[StepRecord]) -> None:
    assert to_svg(step_plots(steps)[0]) == to_svg(step_plots(steps)[0])


def test_values_that_are_not_finite_leave_a_gap(step: Callable[..., StepRecord]) -> None:
    steps = [step(1), step(2, loss=math.nan, grad_norm=math.inf), step(3)]
    for plot in step_plots(steps):
        ET.fromstring(to_svg(plot))


def test_a_single_step_or_epoch_can_be_drawn(
    step: Callable[..., StepRecord], epoch: Callable[..., EpochRecord]
) -> None:
    for plot in step_plots([step(1)]) + epoch_plots([epoch(1, 1)]):
        assert to_png(plot, 40).startswith(b"\x89PNG")


def test_smoothing_keeps_a_straight_line_and_skips_gaps() -> None:
    assert smooth([1.0, 2.0, 3.0, 4.0, 5.0], 3) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert smooth([1.0, math.nan, 3.0], 3)[1] == 2.0
    assert math.isnan(smooth([math.nan], 3)[0])
