"""One run as one HTML file that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from torso.files import replace_atomically
from torso.report.log import DecodedExample, Evaluation, Run, find_setting, flatten, read_run
from torso.report.plots import Plot, epoch_plots, step_plots, to_svg
from torso.report.style import CSS
from torso.report.tables import (
    card,
    epoch_score_table,
    epoch_table,
    escape,
    example,
    label,
    score,
    score_table,
    settings_table,
)
from torso.report.units import count, duration, number, size
from torso.training.best import PERPLEXITY, best

_NUM_EXAMPLES = 6
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(run_dir: Path, out: Path | None = None) -> Path:
    """Write the page of the run in `run_dir` to `out` (default: `report.html` there); returns where it is.

    Raises RunDirectoryError when there is no run, StorageError when the file cannot be written.
    """
    target = out or run_dir / "report.html"
    replace_atomically(target, page(read_run(run_dir)).encode())
    return target


def page(run: Run) -> str:
    """The whole document."""
    parts = [
        _head(run),
        _cards(run),
        _scores(run),
        _plots(run),
        _epochs(run),
        _examples(run),
        _settings(run),
        _notes(run),
    ]
    return document(f"Torso run {run.name}", "".join(parts))


def document(title: str, body: str) -> str:
    """A page that stands alone; `title` is text, `body` HTML."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>{body}</main></body></html>\n"
    )


def describe(run: Run) -> str:
    """The run in a line: model, adapter, data, strategy, parties."""
    settings = run.settings
    model, data = find_setting(settings, "model"), find_setting(settings, "data")
    adapter, rank = find_setting(settings, "adapter", "kind"), find_setting(settings, "lora_rank")
    clients, strategy = find_setting(settings, "clients"), find_setting(settings, "strategy")
    words = [
        f"{model} on {data}" if model and data else str(model or data or ""),
        "all weights" if adapter == "none" else f"{adapter} of rank {rank}" if adapter and rank else str(adapter or ""),
        str(strategy or ""),
        f"{clients} client{'s' if clients != 1 else ''}" if clients else "",
    ]
    return ", ".join(word for word in words if word)


def _head(run: Run) -> str:
    done = f"{count(run.steps[-1].step)} steps, epoch {run.steps[-1].epoch}" if run.steps else "no step logged yet"
    target = run.state.get("epochs")
    goal = f" of {target}" if run.steps and target else ""
    line = ". ".join(filter(None, [describe(run), done + goal]))
    return f'<h1>{escape(run.name)}</h1><p class="lead">{escape(line)}.</p>'


def _cards(run: Run) -> str:
    cards = [_score_card(run, *named) for named in (("perplexity", "Perplexity", 2), *_score_cards(run))]
    if run.epochs:
        first, last = run.epochs[0], run.epochs[-1]
        was = f"{number(first.loss)} in epoch {first.epoch}" if len(run.epochs) > 1 else ""
        cards.insert(0, card(f"Training loss, epoch {last.epoch}", number(last.loss), was))
    if run.steps:
        rate = sum(s.real_tokens for s in run.steps) / run.seconds if run.seconds else math.nan
        cards.append(card("Time in steps", duration(run.seconds), f"{number(rate, 0)} tokens/s"))
    if run.bytes_sent:
        cards.append(card("Sent to the body server", size(run.bytes_sent), f"{size(run.bytes_received)} received"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _score_cards(run: Run) -> list[tuple[str, str, int]]:
    scores = run.after.record.scores if run.after else {}
    names = (("hf_bleu", "BLEU (Hugging Face)", 3), ("hf_meteor", "METEOR (Hugging Face)", 3))
    return [named for named in names if named[0] in scores]


def _score_card(run: Run, name: str, title: str, digits: int) -> str:
    value, was = score(run.after, name), score(run.before, name)
    if value is None or math.isnan(value):
        return ""
    before = "" if was is None else f"before: {number(was, digits)}"
    return card(f"{title}, {run.subset}", number(value, digits), before)


def _scores(run: Run) -> str:
    if run.subset is None:
        return ""
    partial = any(e is not None and e.record.partial for e in (run.before, run.after))
    note = '<p class="note">Of the first inputs only, not of the whole set.</p>' if partial else ""
    decoding = run.after.record.decoding if run.after else ""
    note += f'<p class="note">Decoded with {escape(decoding)}.</p>' if decoding else ""
    return f"<h2>Scores on {escape(run.subset)}</h2>{note}{score_table(run.before, run.after)}"


def _examples(run: Run) -> str:
    if run.after is None or not run.after.examples:
        return ""
    base = _outputs_by_mr(run.before)
    chosen = spread(run.after.examples, _NUM_EXAMPLES)
    blocks = "".join(example(decoded, base.get(decoded.mr)) for decoded in chosen)
    spacing = f"{len(chosen)} of {len(run.after.examples)}, evenly spaced"
    note = f"{spacing}. This page holds decoded text and references: share it as you would share the data."
    return f'<h2>Decoded examples</h2><p class="note">{escape(note)}</p>{blocks}'


def _outputs_by_mr(evaluation: Evaluation | None) -> dict[str, str]:
    return {} if evaluation is None else {e.mr: e.output for e in evaluation.examples}


def spread(examples: Sequence[DecodedExample], num: int) -> list[DecodedExample]:
    """At most `num` of them, evenly spaced, the first included: nobody picked the good ones."""
    if len(examples) <= num:
        return list(examples)
    return [examples[index * len(examples) // num] for index in range(num)]


def _plots(run: Run) -> str:
    limit = find_setting(run.settings, "max_grad_norm")
    clip_at = float(limit) if isinstance(limit, int | float) and limit > 0 else None
    by_step, by_epoch = step_plots(run.steps, clip_at), epoch_plots(run.epochs, clip_at)
    pairs = [plot for key in dict.fromkeys(p.key for p in by_step + by_epoch) for plot in _of(key, by_step, by_epoch)]
    figures = "".join(f'<figure class="plot">{to_svg(plot)}</figure>' for plot in pairs)
    return f'<h2>Training</h2><div class="plots">{figures}</div>' if figures else ""


def _of(key: str, *groups: Sequence[Plot]) -> list[Plot]:
    return [plot for group in groups for plot in group if plot.key == key]


def _epochs(run: Run) -> str:
    return f"<h2>Epochs</h2>{epoch_table(run.epochs)}{_epoch_scores(run)}" if run.epochs else ""


def _epoch_scores(run: Run) -> str:
    """Of dev, on which the best checkpoint is chosen."""
    on_dev = [e for e in run.evaluations if e.record.can_choose and not e.record.decoding]
    best_by = str(find_setting(run.settings, "best_by") or PERPLEXITY)
    known = {e.record.step for e in on_dev}
    step, measure = best([e.record for e in on_dev], known, best_by) or (None, best_by)
    scores = epoch_score_table(run.epochs, on_dev, step)
    if not scores:
        return ""
    note = f"The best is chosen by {label(measure)} on dev; the best and the last are decoded."
    return f'<h2>Epochs on dev</h2><p class="note">{escape(note)}</p>{scores}'


def _settings(run: Run) -> str:
    settings = settings_table("Settings", flatten(run.settings))
    identity = settings_table("Machine and identity", flatten(run.info))
    return f'<div class="columns">{settings}{identity}</div>'


def _notes(run: Run) -> str:
    skipped = sum(step.skipped for step in run.steps)
    notes = []
    if skipped:
        notes.append(f"{skipped} of {len(run.steps)} updates were left out because a gradient was not finite.")
    if run.num_unreadable:
        notes.append(f"{run.num_unreadable} lines of the log could not be read and are not shown.")
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
