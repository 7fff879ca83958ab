"""Writes what a comparison shows, beside its trials."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

from torso.files import make_directory, replace_atomically, storing
from torso.records import finite
from torso.report.comparison.findings import findings
from torso.report.comparison.page import comparison_page
from torso.report.comparison.paper import TABLE_1
from torso.report.comparison.plots import group_plots
from torso.report.comparison.read import read_comparison
from torso.report.comparison.tables import (
    QUANTITIES,
    Table,
    as_csv,
    as_markdown,
    as_text,
    cost_table,
    group_table,
    paper_table,
)
from torso.report.comparison.trials import TOLERANCE, Comparison, Result
from torso.report.plots import to_png

PAGE, DOCUMENT, TEXT, MARKDOWN, CSV, PLOTS = (
    "report.html",
    "compare.json",
    "table.txt",
    "table.md",
    "table.csv",
    "plots",
)
_WIDTH = 100


def write_comparison(path: Path) -> Comparison:
    """Tables, plots, findings and the page of what is done by now. Raises RunDirectoryError, StorageError."""
    comparison = read_comparison(path)
    for name, text in {
        TEXT: text_of(comparison),
        MARKDOWN: markdown_of(comparison),
        CSV: as_csv(comparison),
        DOCUMENT: json.dumps(finite(document_of(comparison)), indent=1, allow_nan=False) + "\n",
        PAGE: comparison_page(comparison),
    }.items():
        replace_atomically(path / name, text.encode())
    with storing(path / PLOTS):
        make_directory(path / PLOTS)
    for group in comparison.groups:
        for plot in group_plots(group):
            replace_atomically(path / PLOTS / f"{group.name}-{plot.key}.png", to_png(plot))
    return comparison


def _titled(comparison: Comparison) -> list[tuple[str, Table]]:
    groups = [(group.title, group_table(group)) for group in comparison.groups]
    cost = [("How cost grows", cost_table(comparison))] if len(groups) > 1 else []
    return [*groups, *cost, ("The paper's Table 1", paper_table())]


def text_of(comparison: Comparison) -> str:
    """Tables and findings for a terminal."""
    tables = [f"{title}\n\n{as_text(table)}\n" for title, table in _titled(comparison)]
    return "\n".join([*tables, *(f"{textwrap.fill(text, _WIDTH)}\n" for text in findings(comparison))])


def markdown_of(comparison: Comparison) -> str:
    """The same in Markdown."""
    tables = [f"## {title}\n\n{as_markdown(table)}\n" for title, table in _titled(comparison)]
    return "\n".join([*tables, "## Findings\n", *(f"{text}\n" for text in findings(comparison))])


def document_of(comparison: Comparison) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "strategies": list(comparison.strategies),
        "models": dict(comparison.models),
        "world_sizes": list(comparison.world_sizes),
        "warm_up_steps": comparison.warm_up_steps,
        "settings": dict(comparison.settings),
        "machine": dict(comparison.machine),
        "on_gpu": comparison.on_gpu,
        "trials": [_result(result) for result in comparison.results.values()],
        "losses": {
            "tolerance": TOLERANCE,
            "agree": comparison.agrees,
            "largest_relative_difference_by_epoch": {m: comparison.differences(m) for m in comparison.models},
        },
        "findings": findings(comparison),
        "paper": {name: dataclasses.asdict(column) for name, column in TABLE_1.items()},
    }


def _result(result: Result) -> dict[str, Any]:
    totals = {quantity.key: quantity.of(result) for quantity in QUANTITIES} if result.done else {}
    return {
        **dataclasses.asdict(result.trial),
        "name": result.trial.name,
        "state": result.state,
        "reason": result.reason,
        "parties": result.parties,
        "wall_seconds": result.wall_seconds,
        "others_cores": result.others_cores,
        "totals": totals,
        "epochs": [dataclasses.asdict(epoch) for epoch in result.epochs],
    }
