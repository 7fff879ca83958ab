"""`torso evaluate RUN_DIR`: perplexity, decoding, scores; through the split where the run is split."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from torso.cli.assembly import Assembly, num_threads
from torso.cli.chosen import chosen
from torso.cli.opened import opened_model
from torso.cli.parsing import parse, refuse_idle
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.evaluation.evaluate import Decoded, decode_groups, is_plain_text, measure_perplexity, save, score
from torso.records import EvaluationRecord, finite
from torso.report.progress import DecodingProgress
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import MetricsLog, RunDirectory


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(DecodingConfig):
    """Decode a split of a data set with a run's model, or with a peft adapter, and score it."""

    run_dir: Annotated[Path | None, tyro.conf.Positional] = None
    """The run."""
    adapter: Path | None = None
    """A peft adapter's folder in place of a run; --model, --data, --tokenizer, --threads and --out belong to it."""
    model: str = "mini"
    """The adapter's model."""
    data: str = "demo"
    """Data set to evaluate the adapter on."""
    tokenizer: str | None = None
    """Folder of another tokenizer than the model's."""
    threads: int | None = None
    """Intra-op threads on a CPU. Default: all cores."""
    out: Path | None = None
    """Folder for the adapter's outputs and scores."""
    subset: Literal["dev", "test"] = "dev"
    """Split to evaluate on."""
    base: bool = False
    """The base model without its adapter."""
    checkpoint: str = "last"
    """last; best (lowest perplexity on dev among those evaluated, else lowest epoch loss); or a step."""
    max_groups: int | None = None
    """Only this many inputs, the first ones."""
    server: tuple[str, ...] = ()
    """Other body servers than the run's."""
    whole: bool = False
    """The whole model in this process, though the run is split."""
    device: tuple[str, ...] = ()
    """Another device than the run's."""
    allow_inexact: bool = False
    """Go on where the server's arithmetic is another."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Evaluate and print the scores."""
    options = parse(EvaluateArguments, "evaluate", arguments)
    if (options.run_dir is None) == (options.adapter is None):
        raise ConfigError("neither or both of a run and --adapter are given", "Give one of them.")
    if options.max_groups is not None and options.max_groups < 1:
        raise ConfigError(f"max_groups is {options.max_groups}", "Give 1 or more.")
    if options.run_dir is None:
        refuse_idle(options, "--adapter", ["checkpoint", "server", "whole", "allow_inexact"])
    else:
        refuse_idle(options, "a run", ["model", "data", "tokenizer", "threads", "out"])
    decoding = DecodingConfig.of(options)
    record = _of_adapter(options, decoding) if options.run_dir is None else _of_run(options, options.run_dir, decoding)
    if options.json:
        print(json.dumps(finite(dataclasses.asdict(record)), allow_nan=False))
    return 0


def _of_run(options: EvaluateArguments, path: Path, decoding: DecodingConfig) -> EvaluationRecord:
    run = RunDirectory(path)
    config = here(run, options.server, options.device, options.allow_inexact, options.whole)
    with run.lock():
        checkpoint = None if options.base else chosen(run, options.checkpoint)
        return evaluate_run(run, config, options.subset, checkpoint, options.max_groups, decoding=decoding)


def _of_adapter(options: EvaluateArguments, decoding: DecodingConfig) -> EvaluationRecord:
    """A peft adapter on a model, without any run; outputs are kept where --out says."""
    from torso.cli.adapters import without_run

    names = ("model", "data", "tokenizer", "threads")
    settings = {name: getattr(options, name) for name in names} | {"device": options.device or ("auto",)}
    config, adapted = without_run(options.adapter or Path(), **settings)
    state = None if options.base else adapted
    record, decoded = measure(config, options.subset, state, options.max_groups, True, decoding)
    if options.out is not None:
        save(options.out, record, decoded)
    print(describe(record), file=sys.stderr)
    return record


def here(
    run: RunDirectory, server: Sequence[str], device: Sequence[str], allow_inexact: bool, whole: bool
) -> RunConfig:
    """The run's settings, with other servers and devices where they are given, for this command alone."""
    config = RunConfig.from_toml(run.path / "config.toml")
    if whole:
        # with the split's number of threads: the bits depend on it
        config = dataclasses.replace(config, strategy="single", clients=1, threads=num_threads(config))
    return dataclasses.replace(
        config,
        server=tuple(server) or config.server,
        device=tuple(device) or config.device,
        allow_inexact=allow_inexact or config.allow_inexact,
    ).checked()


def evaluate_run(
    run: RunDirectory,
    config: RunConfig,
    subset: str,
    checkpoint: Checkpoint | None,
    max_groups: int | None = None,
    decode: bool = True,
    decoding: DecodingConfig = DecodingConfig(),  # noqa: B008 (frozen)
) -> EvaluationRecord:
    """`measure`, and what it found kept: outputs under `evaluation/`, the record in the log; printed on stderr."""
    record, decoded = measure(config, subset, checkpoint, max_groups, decode, decoding)
    if decode:
        names = [subset, f"step-{record.step:08d}" if checkpoint else "base", decoding.name]
        save(run.path / "evaluation" / "-".join(filter(None, names)), record, decoded)
    MetricsLog(run.path).append(record)
    print(describe(record), file=sys.stderr)
    return record


def measure(
    config: RunConfig,
    subset: str,
    checkpoint: Checkpoint | None,
    max_groups: int | None,
    decode: bool,
    decoding: DecodingConfig,
) -> tuple[EvaluationRecord, list[Decoded]]:
    """Perplexity and, from decoded outputs, scores on a split at a checkpoint (None: the base model)."""
    assembly = Assembly(config)
    assembly.use_threads()
    everything = assembly.corpus.split(subset)
    groups = everything[:max_groups]
    progress, started = DecodingProgress(len(groups)), time.monotonic()
    with opened_model(assembly, checkpoint) as model:
        measured = measure_perplexity(model, assembly.tokenizer, groups, assembly.max_tokens)
        decoded: list[Decoded] = []
        if decode and not is_plain_text(groups):
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
