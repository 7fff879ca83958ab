"""Numbers as people read them; never depends on the locale."""

from __future__ import annotations

import math


def number(value: float, digits: int = 3) -> str:
    """Fixed decimals, thousands grouped; `not finite` for NaN and infinities."""
    if not math.isfinite(value):
        return "not finite"
    if value and abs(value) < 10.0**-digits:
        return f"{value:.2g}"
    return f"{value:,.{digits}f}"


def count(value: int) -> str:
    """An integer, thousands grouped."""
    return f"{value:,}"


def size(num_bytes: float) -> str:
    """Bytes in decimal units: `812 B`, `12.6 MB`."""
    value, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000.0
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 99.95 else f"{value:.1f} {units[0]}"


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
