from __future__ import annotations

import math

import pytest

from torso.report.units import duration, number, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (12_600_000, "12.6 MB"),
        (999_600, "1.0 MB"),
        (176_947_200, "177 MB"),
        (2e15, "2000 TB"),
    ],
)
def test_sizes(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.21, "4.2 s"),
        (59.99, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (math.inf, "unknown"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234.500"), (0.00002, "2e-05"), (math.nan, "not finite"), (0, "0.000")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
