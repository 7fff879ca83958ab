"""`torso evaluate RUN_DIR`: perplexity, decoding, scores; through the split where the run is split."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torso.cli.assembly import Assembly
from torso.cli.chosen import chosen
from torso.cli.model_arguments import ModelArguments
from torso.cli.opened import opened_model
from torso.cli.parsing import parse
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.evaluation.evaluate import Decoded, decode_groups, is_plain_text, measure_perplexity, save, score
from torso.files import check_place
from torso.records import EvaluationRecord, finite
from torso.report.progress import DecodingProgress
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import MetricsLog, RunDirectory


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(ModelArguments):
    """Decode a split of a data set with a run's model, or with a peft adapter, and score it."""

    data: str = "demo"
    """Data set to evaluate an adapter on."""
    out: Path | None = None
    """Folder for an adapter's outputs and scores."""
    subset: Literal["dev", "test"] = "dev"
    """Split to evaluate on."""
    base: bool = False
    """The base model without its adapter."""
    max_groups: int | None = None
    """Only this many inputs, the first ones."""


def main(arguments: Sequence[str]) -> int:
    """Evaluate and print the scores."""
    options = parse(EvaluateArguments, "evaluate", arguments)
    options.check_model("data", "out")
    if options.max_groups is not None and options.max_groups < 1:
        raise ConfigError(f"max_groups is {options.max_groups}", "Give 1 or more.")
    if options.out is not None:
        check_place(options.out, "out", folder=True)
    decoding = DecodingConfig.of(options)
    record = _of_adapter(options, decoding) if options.run_dir is None else _of_run(options, options.run_dir, decoding)
    if options.json:
        print(json.dumps(finite(dataclasses.asdict(record)), allow_nan=False))
    return 0


def _of_run(options: EvaluateArguments, path: Path, decoding: DecodingConfig) -> EvaluationRecord:
    run = RunDirectory(path)
    assembly = Assembly(options.of_run(run))
    with run.lock():
        checkpoint = None if options.base else chosen(run, options.checkpoint)
        return evaluate_run(run, assembly, options.subset, checkpoint, options.max_groups, decoding=decoding)


def _of_adapter(options: EvaluateArguments, decoding: DecodingConfig) -> EvaluationRecord:
    """Without any run; outputs are kept where --out says."""
    config, adapted = options.of_adapter(data=options.data)
    state = None if options.base else adapted
    record, decoded = measure(Assembly(config), options.subset, state, options.max_groups, True, decoding)
    if options.out is not None:
        save(options.out, record, decoded)
    print(describe(record), file=sys.stderr)
    return record


def evaluate_run(
    run: RunDirectory,
    assembly: Assembly,
    subset: str,
    checkpoint: Checkpoint | None,
    max_groups: int | None = None,
    decode: bool = True,
    decoding: DecodingConfig = DecodingConfig(),  # noqa: B008 (frozen)
) -> EvaluationRecord:
    """`measure`, and what it found kept: outputs under `evaluation/`, the record in the log; printed on stderr."""
    record, decoded = measure(assembly, subset, checkpoint, max_groups, decode, decoding)
    if decode:
        part = f"first{len(decoded)}" if record.partial else ""
        names = [subset, f"step-{record.step:08d}" if checkpoint else "base", decoding.name, part]
        save(run.path / "evaluation" / "-".join(filter(None, names)), record, decoded)
    MetricsLog(run.path).append(record)
    print(describe(record), file=sys.stderr)
    return record


def measure(
    assembly: Assembly,
    subset: str,
    checkpoint: Checkpoint | None,
    max_groups: int | None,
    decode: bool,
    decoding: DecodingConfig,
) -> tuple[EvaluationRecord, list[Decoded]]:
    """Perplexity and, from decoded outputs, scores on a split at a checkpoint (None: the base model).

    An assembly that has measured a checkpoint is no longer the base model's.
    """
    assembly.prepare_process()
    everything = assembly.corpus.split(subset)
    groups = everything[:max_groups]
    started = time.monotonic()
    with opened_model(assembly, checkpoint) as model:
        measured = measure_perplexity(model, assembly.tokenizer, groups, assembly.max_tokens)
        decoded: list[Decoded] = []
        if decode and not is_plain_text(groups):
            progress = DecodingProgress(len(groups))
            decoded = decode_groups(model, assembly.tokenizer, groups, assembly.max_tokens, decoding, progress)
    record = EvaluationRecord(
        step=checkpoint.step if checkpoint else 0,
        subset=subset,
        adapted=checkpoint is not None,
        perplexity=measured.value,
        scores=score(decoded) if decoded else {},
        partial=len(groups) < len(everything),
        decoding=decoding.name,
        seconds=time.monotonic() - started,
    )
    return record, decoded


def describe(record: EvaluationRecord) -> str:
    """One line for people."""
    what = "adapted, " if record.adapted else "without adapter, "
    what += "first inputs only, " if record.partial else ""
    what += f"{record.decoding}, " if record.decoding else ""
    scores = "  ".join(f"{name} {value:.4f}" for name, value in record.scores.items())
    return f"{record.subset} ({what}step {record.step}): perplexity {record.perplexity:.3f}  {scores}".rstrip()
