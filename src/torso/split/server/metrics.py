"""Prometheus' text format (version 0.0.4) for /metrics."""

from __future__ import annotations

from collections.abc import Mapping

from torso.split.server.worker import Worker


def exposition(worker: Worker, load: int, requests: Mapping[str, int]) -> str:
    """The page."""
    gauges = {
        "torso_jobs": ("Jobs held by this worker.", worker.num_jobs()),
        "torso_load": ("Requests under way or waiting.", load),
        "torso_memory_peak_bytes": ("Largest memory so far.", worker.memory()),
    }
    lines = []
    for name, (text, value) in gauges.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
    lines += ["# HELP torso_requests_total Requests by kind.", "# TYPE torso_requests_total counter"]
    lines += [f'torso_requests_total{{kind="{kind}"}} {count}' for kind, count in sorted(requests.items())]
    return "\n".join(lines) + "\n"
