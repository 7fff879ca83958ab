"""Pieces of the page. Everything that comes from a run is escaped here, and nowhere else."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from torso.data.slots import parse_mr
from torso.errors import DataError
from torso.records import EpochRecord
from torso.report.log import DecodedExample, Evaluation
from torso.report.units import count, duration, number, size

SCORE_NAMES = {
    "hf_bleu": "BLEU, Hugging Face definition",
    "official_bleu": "BLEU, official E2E definition",
    "hf_meteor": "METEOR, Hugging Face definition",
    "official_meteor": "METEOR, official E2E definition",
    "official_nist": "NIST, official E2E definition",
    "official_rouge_l": "ROUGE-L, official E2E definition",
    "official_cider": "CIDEr, official E2E definition",
    "slot_error_rate": "slot error rate (missing, added, wrong; 0 is best)",
}


def escape(value: object) -> str:
    """Text that is safe between tags and in quoted attributes."""
    return html.escape(str(value), quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are text, not HTML."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def settings_table(title: str, settings: Mapping[str, str]) -> str:
    """Names and values in two columns; nothing when there are none."""
    if not settings:
        return ""
    return f"<div><h2>{escape(title)}</h2>{table(('setting', 'value'), settings.items())}</div>"


def epoch_table(epochs: Sequence[EpochRecord]) -> str:
    """One row an epoch, one column for what a comparison asks for."""
    head = ("epoch", "loss", "perplexity", "mean norm", "largest norm", "tokens/s", "time", "target tokens",
            "padding", "client memory", "server memory", "sent", "received")  # fmt: skip
    return table(head, [_epoch_row(epoch) for epoch in epochs])


def epoch_score_table(epochs: Sequence[EpochRecord], evaluations: Sequence[Evaluation], best: int | None) -> str:
    """Epochs by metrics: what was measured at each epoch's end; a dash where it was not. `best` is a step."""
    by_step = {e.record.step: e for e in evaluations}
    ends = [(epoch, by_step.get(epoch.step)) for epoch in epochs]
    names = score_names(*(evaluation for _, evaluation in ends))
    rows = [
        (f"{epoch.epoch}{' (best)' if epoch.step == best else ''}", *(_score(evaluation, name) for name in names))
        for epoch, evaluation in ends
    ]
    return table(("epoch", *map(label, names)), rows) if names else ""


def _epoch_row(e: EpochRecord) -> tuple[str, ...]:
    padding = 1.0 - e.real_tokens / e.padded_tokens if e.padded_tokens else 0.0
    return (
        str(e.epoch),
        number(e.loss, 4),
        number(exponential(e.loss), 2),
        number(e.grad_norm_mean),
        number(e.grad_norm_max),
        number(e.tokens_per_second, 0),
        duration(e.seconds),
        count(e.target_tokens),
        f"{100.0 * padding:.1f} %",
        size(e.memory_bytes),
        size(e.server_memory_bytes) if e.server_memory_bytes else "-",
        size(e.bytes_sent) if e.bytes_sent else "-",
        size(e.bytes_received) if e.bytes_received else "-",
    )


def exponential(loss: float) -> float:
    """Perplexity of a mean loss; infinite rather than an overflow."""
    return math.exp(loss) if loss < 700.0 else math.inf


def score_table(before: Evaluation | None, after: Evaluation | None) -> str:
    """Each score of the base model beside the adapted one's."""
    names = score_names(before, after)
    rows = [(label(name), _score(before, name), _score(after, name)) for name in names]
    return table(("score", "before fine-tuning", "after"), rows)


def score_names(*evaluations: Evaluation | None) -> list[str]:
    """`loss`, `perplexity`, then every score that one of them has, in order."""
    present = [e for e in evaluations if e is not None]
    names = [name for e in present for name in e.record.scores]
    return ["loss", "perplexity", *dict.fromkeys(names)] if present else []


def label(name: str) -> str:
    """A score's name for people."""
    return SCORE_NAMES.get(name, name.replace("_", " "))


def score(evaluation: Evaluation | None, name: str) -> float | None:
    """The value of one score; the loss is the logarithm of the perplexity."""
    if evaluation is None:
        return None
    perplexity = evaluation.record.perplexity
    if name == "loss":
        return math.log(perplexity) if perplexity > 0.0 else math.nan
    return perplexity if name == "perplexity" else evaluation.record.scores.get(name)


def _score(evaluation: Evaluation | None, name: str) -> str:
    value = score(evaluation, name)
    if value is None or math.isnan(value):
        return "-"
    return number(value, 2 if name == "perplexity" else 4)


def example(decoded: DecodedExample, base_output: str | None) -> str:
    """One decoded example beside its references; slots that it leaves out or changes are marked in the input."""
    rows = [f'<dt>decoded</dt><dd class="output">{escape(decoded.output) or "(nothing)"}</dd>']
    errors = "; ".join(f"{kind}: {', '.join(slots)}" for kind, slots in decoded.slot_errors.items() if slots)
    rows += [f'<dt>slot errors</dt><dd class="errors">{escape(errors)}</dd>'] if errors else []
    if base_output is not None:
        rows.append(f"<dt>before</dt><dd>{escape(base_output) or '(nothing)'}</dd>")
    references = "".join(f"<li>{escape(text)}</li>" for text in decoded.references[:4])
    more = len(decoded.references) - 4
    references += f'<li class="note">and {more} more</li>' if more > 0 else ""
    rows.append(f'<dt>references</dt><dd><ul class="plain">{references}</ul></dd>')
    return f'<div class="example"><div class="mr">{_marked(decoded)}</div><dl>{"".join(rows)}</dl></div>'


def _marked(decoded: DecodedExample) -> str:
    """The input, with missing and wrong slots marked."""
    faults = {slot: kind for kind in ("missing", "wrong") for slot in decoded.slot_errors.get(kind, ())}
    if not faults:
        return escape(decoded.mr)
    try:
        slots = parse_mr(decoded.mr)
    except DataError:
        return escape(decoded.mr)
    return ", ".join(
        f'<mark title="{faults[name]}">{escape(f"{name}[{value}]")}</mark>'
        if name in faults
        else escape(f"{name}[{value}]")
        for name, value in slots
    )


def card(name: str, value: str, was: str = "") -> str:
    """One large number; `was` stands small below it."""
    below = f'<div class="was">{escape(was)}</div>' if was else ""
    above = f'<div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
    return f'<div class="card">{above}{below}</div>'
