"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

from torso.report.comparison.findings import describe_time, findings
from torso.report.comparison.plots import group_plots
from torso.report.comparison.tables import Table, cost_table, epochs_table, group_table, paper_table
from torso.report.comparison.trials import Comparison, Group
from torso.report.log import flatten
from torso.report.page import document
from torso.report.plots import to_svg
from torso.report.tables import escape, settings_table, table
from torso.report.units import number

_ASIDE = "Points of one epoch are drawn a little beside each other: where strategies agree, lines would hide lines."


def comparison_page(comparison: Comparison) -> str:
    """The whole document."""
    parts = [_head(comparison), _findings(comparison)]
    parts += [_group(group) for group in comparison.groups]
    if len(comparison.groups) > 1:
        parts.append(f"<h2>How cost grows</h2>{_html(cost_table(comparison))}")
    parts += [_agreement(comparison), _paper(), _machine(comparison)]
    return document(f"Torso comparison {comparison.path.resolve().name}", "".join(parts))


def _head(comparison: Comparison) -> str:
    what = f"{', '.join(comparison.strategies)} on {', '.join(comparison.models)}, {describe_time(comparison)} in all"
    return f'<h1>Strategies side by side</h1><p class="lead">{escape(what)}.</p>'


def _findings(comparison: Comparison) -> str:
    return "<h2>Findings</h2>" + "".join(f"<p>{escape(text)}</p>" for text in findings(comparison))


def _group(group: Group) -> str:
    figures = "".join(f'<figure class="plot">{to_svg(plot)}</figure>' for plot in group_plots(group))
    epochs = f"<h3>By epoch</h3>{_html(epochs_table(group))}" if group.done else ""
    plots = f'<p class="note">{_ASIDE}</p><div class="plots">{figures}</div>' if figures else ""
    return f"<h2>{escape(group.title)}</h2>{_html(group_table(group))}{plots}{epochs}"


def _agreement(comparison: Comparison) -> str:
    rows = [
        [model, str(epoch), f"{difference:.1e}"]
        for model in comparison.models
        for epoch, difference in enumerate(comparison.differences(model), 1)
    ]
    head = ["model", "epoch", "largest relative difference of losses"]
    return f"<h2>Do the losses agree?</h2>{table(head, rows)}" if rows else ""


def _paper() -> str:
    return f"<h2>The paper's Table 1</h2>{_html(paper_table())}"


def _machine(comparison: Comparison) -> str:
    machine = settings_table("Machine", dict(comparison.machine) | _others(comparison))
    return f'<div class="columns">{settings_table("Settings", flatten(comparison.settings))}{machine}</div>'


def _others(comparison: Comparison) -> dict[str, str]:
    return {
        f"cores used by other programs, {result.trial.name}": number(result.others_cores, 2)
        for result in comparison.results.values()
        if result.done
    }


def _html(of: Table) -> str:
    return table(*of)
