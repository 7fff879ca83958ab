"""Tables: quantities by rows, strategies by columns, as the paper's Table 1; as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torso.report.comparison.paper import TABLE_1
from torso.report.comparison.trials import NOT_APPLICABLE, Comparison, Group, Result
from torso.report.units import number

MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One row of the table."""

    key: str
    """Stable name, for CSV and JSON."""
    title: str
    unit: str
    of: Callable[[Result], float]
    digits: int = 1


QUANTITIES = (
    Quantity(key="loss", title="Average loss", unit="per target token", of=lambda r: r.loss, digits=4),
    Quantity(
        key="last_loss", title="Loss, last epoch", unit="per target token", of=lambda r: r.epochs[-1].loss, digits=4
    ),
    Quantity(key="grad_norm_mean", title="Gradient norm, mean", unit="", of=lambda r: r.grad_norm_mean, digits=3),
    Quantity(
        key="grad_norm_max",
        title="Gradient norm, largest",
        unit="",
        of=lambda r: r.largest(lambda e: e.grad_norm_max),
        digits=3,
    ),
    Quantity(key="seconds", title="Total training time", unit="s", of=lambda r: r.seconds),
    Quantity(key="warm_up_seconds", title="Warm-up, apart", unit="s", of=lambda r: r.warm_up_seconds),
    Quantity(key="save_seconds", title="Checkpoints, apart", unit="s", of=lambda r: r.save_seconds),
    Quantity(key="evaluation_seconds", title="Validation, apart", unit="s", of=lambda r: r.evaluation_seconds),
    Quantity(key="other_seconds", title="Start-up and end, apart", unit="s", of=lambda r: r.other_seconds),
    Quantity(
        key="memory_megabytes",
        title="Peak memory, largest rank",
        unit="MB",
        of=lambda r: r.largest(lambda e: e.memory_bytes) / MEGABYTE,
        digits=0,
    ),
    Quantity(
        key="memory_sum_megabytes",
        title="Peak memory, all ranks, at most",
        unit="MB",
        of=lambda r: r.largest(lambda e: e.memory_sum_bytes) / MEGABYTE,
        digits=0,
    ),
    Quantity(
        key="real_tokens_per_second",
        title="Throughput, real tokens",
        unit="tokens/s",
        of=lambda r: r.real_tokens_per_second,
        digits=0,
    ),
    Quantity(
        key="padded_tokens_per_second",
        title="Throughput, with padding",
        unit="tokens/s",
        of=lambda r: r.padded_tokens_per_second,
        digits=0,
    ),
    Quantity(
        key="sent_a_step_megabytes",
        title="Sent by a rank, a step",
        unit="MB",
        of=lambda r: r.sent_a_step / MEGABYTE,
        digits=3,
    ),
    Quantity(
        key="received_a_step_megabytes",
        title="Received by a rank, a step",
        unit="MB",
        of=lambda r: r.received_a_step / MEGABYTE,
        digits=3,
    ),
)

Table = tuple[list[str], list[list[str]]]
"""The head and the rows."""


def group_table(group: Group) -> Table:
    """Table 1's layout."""
    head = ["", *(result.trial.strategy for result in group.results)]
    rows = [["Processes", *(result.parties or "-" for result in group.results)]]
    rows += [[_title(quantity), *(cell(quantity, result) for result in group.results)] for quantity in QUANTITIES]
    return head, rows


def _title(quantity: Quantity) -> str:
    return f"{quantity.title} ({quantity.unit})" if quantity.unit else quantity.title


def cell(quantity: Quantity, result: Result) -> str:
    """A number, or why there is none."""
    if not result.done:
        return "n/a" if result.state == NOT_APPLICABLE else result.state
    value = quantity.of(result)
    return number(value, quantity.digits) if math.isfinite(value) else "-"


def paper_table() -> Table:
    """The paper's own figures."""
    head = ["", *TABLE_1]
    titles = (
        ("Average loss (per token)", "loss", 3),
        ("Gradient norm", "grad_norm", 3),
        ("Total training time (s)", "seconds", 0),
        ("Memory (MB)", "memory_megabytes", 0),
        ("Throughput (tokens / time)", "throughput", 3),
    )
    return head, [
        [title, *(number(getattr(column, name), digits) for column in TABLE_1.values())]
        for title, name, digits in titles
    ]


def cost_table(comparison: Comparison) -> Table:
    """A row a trial: how each strategy's cost grows with the model and with the number of processes."""
    head = ["strategy", "model", "parameters", "processes", "time an epoch (s)", "times single", "tokens/s",
            "largest rank (MB)", "all ranks (MB)", "sent by a rank, a step (MB)"]  # fmt: skip
    results = sorted(comparison.results.values(), key=lambda r: _order(comparison, r))
    return head, [_cost_row(comparison, result) for result in results if result.done]


def _order(comparison: Comparison, result: Result) -> tuple[int, int, int]:
    trial = result.trial
    models = list(comparison.models)
    return comparison.strategies.index(trial.strategy), models.index(trial.model), trial.num_processes


def _cost_row(comparison: Comparison, result: Result) -> list[str]:
    trial = result.trial
    group = next(group for group in comparison.groups if result in group.results)
    single = group.of("single")
    values = {quantity.key: cell(quantity, result) for quantity in QUANTITIES}
    return [
        trial.strategy,
        trial.model,
        f"{comparison.models[trial.model]:,}",
        result.parties,
        number(result.seconds / len(result.epochs), 2),
        number(result.seconds / single.seconds, 2) if single and single.seconds else "-",
        values["real_tokens_per_second"],
        values["memory_megabytes"],
        values["memory_sum_megabytes"],
        values["sent_a_step_megabytes"],
    ]


def epochs_table(group: Group) -> Table:
    """A row for each strategy and epoch."""
    head = ["strategy", "epoch", "loss", "mean norm", "largest norm", "time (s)", "largest rank (MB)",
            "all ranks (MB)", "real tokens/s", "padded tokens/s", "sent by a rank (MB)"]  # fmt: skip
    rows = [
        [
            result.trial.strategy,
            str(e.epoch),
            number(e.loss, 4),
            number(e.grad_norm_mean),
            number(e.grad_norm_max),
            number(e.seconds, 2),
            number(e.memory_bytes / MEGABYTE, 0),
            number(e.memory_sum_bytes / MEGABYTE, 0),
            number(e.real_tokens_per_second, 0) if e.seconds else "-",
            number(e.padded_tokens_per_second, 0) if e.seconds else "-",
            number(e.bytes_sent / MEGABYTE, 2),
        ]
        for result in group.done
        for e in result.epochs
    ]
    return head, rows


def as_text(table: Table) -> str:
    """Columns of even width, the first to the left."""
    head, rows = table
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [_line(cells, widths) for cells in (head, *rows)]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    rest = "".join(f"  {text:>{width}}" for text, width in zip(cells[1:], widths[1:], strict=True))
    return f"{cells[0]:<{widths[0]}}{rest}"


def as_markdown(table: Table) -> str:
    """GitHub's dialect."""
    head, rows = table
    bars = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([_cells(head), bars, *map(_cells, rows)])


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def as_csv(comparison: Comparison) -> str:
    """All groups in one file, full precision; empty where there is no number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["model", "processes", "quantity", "unit", *comparison.strategies])
    for group in comparison.groups:
        for quantity in QUANTITIES:
            values = [_raw(quantity, result) for result in group.results]
            writer.writerow([group.model, group.num_processes, quantity.key, quantity.unit, *values])
    return file.getvalue()


def _raw(quantity: Quantity, result: Result) -> str:
    value = quantity.of(result) if result.done else math.nan
    return repr(value) if math.isfinite(value) else ""
