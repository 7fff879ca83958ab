"""`torso score --references R --predictions P`: every metric of anybody's outputs, each with its signature."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse
from torso.cli.scored import Line, Scored, document, segment_rows, table, tsv
from torso.data.alignment import align, shifted_run
from torso.data.scored_files import read_mrs, read_outputs, read_references
from torso.errors import ConfigError
from torso.evaluation.metrics import METRICS, Measured, Scores, Texts, forms, measure, segment_table, signature
from torso.evaluation.resampling import difference_intervals, intervals, p_values
from torso.files import check_place, replace_atomically

MOST_RESAMPLES = 1_000_000
"""More would take hours and gigabytes, and move no digit that is shown."""


@dataclass(frozen=True, kw_only=True)
class ScoreArguments:
    """Score outputs against references: the official E2E metrics, Hugging Face's BLEU and METEOR, slot errors."""

    references: Path
    """CSV or TSV with inputs and references, JSON Lines, or text with groups of references parted by blank lines."""
    predictions: Path
    """One output for each input: text with one a line, CSV or TSV, or JSON Lines."""
    mrs: Path | None = None
    """The inputs, one a line or as a column, where neither of the two has them; slot errors need them."""
    bootstrap: int = 0
    """Resamples of the inputs for 95 % intervals, e.g. 1000. 0: no intervals."""
    compare: Path | None = None
    """Other outputs for the same inputs: is the difference significant?"""
    seed: int = 0
    """Of resampling."""
    official_meteor: bool = True
    """Run the official METEOR (Java, some seconds) where it is installed."""
    segments: bool = False
    """Values of each input too."""
    segments_out: Path | None = None
    """Write the values of each input to this file, as TSV."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Score and print."""
    options = parse(ScoreArguments, "score", arguments, positional=False)
    _check(options)
    texts = read(options, options.predictions)
    others = None if options.compare is None else read(options, options.compare)
    for name, given in ((options.predictions, texts), (options.compare, others)):
        if given is not None:
            _warn(str(name), given)
    leave_out = [] if options.official_meteor else ["official_meteor"]
    scores = measure(texts, leave_out)
    if not options.official_meteor:
        scores.not_computed["official_meteor"] = "left out by --no-official-meteor"
    scored = score(texts, scores, None if others is None else measure(others, leave_out), options)
    rows = segment_rows(texts, segment_table(scores)) if options.segments or options.segments_out else []
    if options.segments_out is not None:
        replace_atomically(options.segments_out, tsv(rows).encode())
    shown = rows if options.segments else []
    if options.json:
        print(json.dumps(document(scored, shown), ensure_ascii=False, allow_nan=False))
    else:
        print(table(scored), tsv(shown), sep="\n" if shown else "", end="")
    return 0


def _check(options: ScoreArguments) -> None:
    if not 0 <= options.bootstrap <= MOST_RESAMPLES:
        remedy = f"Give a number of resamples from 0 to {MOST_RESAMPLES}, e.g. 1000."
        raise ConfigError(f"bootstrap is {options.bootstrap}", remedy)
    if options.seed < 0:
        raise ConfigError(f"seed is {options.seed}", "Give 0 or more.")
    if options.segments_out is not None:
        check_place(options.segments_out, "segments_out")


def read(options: ScoreArguments, predictions: Path) -> Texts:
    """Outputs beside their references. DataError, with the first mismatch, unless they fit."""
    mrs = None if options.mrs is None else read_mrs(options.mrs)
    aligned = align(read_references(options.references), read_outputs(predictions), mrs)
    return Texts(outputs=aligned.outputs, references=aligned.references, mrs=aligned.mrs)


def score(texts: Texts, scores: Scores, others: Scores | None, options: ScoreArguments) -> Scored:
    """The lines of the table, in the metrics' order."""
    measured = scores.measured
    ranges = intervals(measured, options.bootstrap, options.seed).tolist() if options.bootstrap else []
    lines = []
    for number, one in enumerate(measured):
        low, high = ranges[number] if ranges else (None, None)
        line = Line(one.metric.name, one.metric.title, one.value, signature(one.metric, texts), low, high)
        lines.append(line)
    if others is not None:
        lines = _compared(lines, measured, {m.metric.name: m for m in others.measured}, options)
    titles = {metric.name: metric.title for metric in METRICS}
    missing = tuple((name, titles[name], why) for name, why in scores.not_computed.items())
    ours, theirs = forms(texts)
    return Scored(
        lines=tuple(lines),
        not_computed=missing,
        num_outputs=len(texts.outputs),
        num_empty=sum(not output.strip() for output in texts.outputs),
        num_references=sum(map(len, texts.references)),
        outputs_form=ours,
        references_form=theirs,
        bootstrap=options.bootstrap,
        seed=options.seed,
        compared_with="" if options.compare is None else str(options.compare),
    )


def _compared(
    lines: Sequence[Line], measured: Sequence[Measured], others: dict[str, Measured], options: ScoreArguments
) -> list[Line]:
    """The lines with the other outputs' values and the p-values of the differences."""
    pairs = [(m, others[m.metric.name]) for m in measured if m.metric.name in others]
    ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]
    chances = p_values(ours, theirs, options.seed)
    ranges = difference_intervals(ours, theirs, options.bootstrap, options.seed).tolist() if options.bootstrap else []
    found = {}
    for number, (other, chance) in enumerate(zip(theirs, chances, strict=True)):
        found[other.metric.name] = (other.value, chance, *(ranges[number] if ranges else (None, None)))
    return [line.beside(*found[line.name]) if line.name in found else line for line in lines]


def _warn(name: str, texts: Texts) -> None:
    """Of what is no error for sure, and would make the scores worthless."""
    ours, theirs = forms(texts)
    run = shifted_run(texts.outputs, texts.references)
    if ours != theirs:
        what = f"{name} looks {ours} and the references look {theirs}, which lowers most scores"
        print(f"torso: warning: {what}", file=sys.stderr)
    if run is not None:
        places = f"outputs {run[0] + 1} to {run[1] + 1} of {name}"
        what = f"{places} fit their neighbours' references better: is a line missing, and another too many?"
        print(f"torso: warning: {what}", file=sys.stderr)
