"""`torso evaluate RUN_DIR`: perplexity, decoding, scores; through the split where the run is split."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torso.cli.assembly import Assembly, num_threads
from torso.cli.chosen import check_base, chosen
from torso.cli.parsing import parse
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.evaluation.evaluate import Decoded, decode_groups, is_plain_text, measure_perplexity, save, score
from torso.evaluation.model import CachedModel, LocalMiddle
from torso.records import EvaluationRecord, finite
from torso.report.progress import DecodingProgress
from torso.split.client.remote_inference import RemoteInference
from torso.split.client.servers import check_before_start
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import MetricsLog, RunDirectory


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(DecodingConfig):
    """Decode a split of the run's data set and score it."""

    run_dir: Path
    """The run."""
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
    run = RunDirectory(options.run_dir)
    config = here(run, options.server, options.device, options.allow_inexact, options.whole)
    if options.max_groups is not None and options.max_groups < 1:
        raise ConfigError(f"max_groups is {options.max_groups}", "Give 1 or more.")
    with run.lock():
        checkpoint = None if options.base else chosen(run, options.checkpoint)
        decoding = DecodingConfig.of(options)
        record = evaluate_run(run, config, options.subset, checkpoint, options.max_groups, decoding=decoding)
    if options.json:
        print(json.dumps(finite(dataclasses.asdict(record)), allow_nan=False))
    return 0


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
    """Perplexity and, from decoded outputs, scores on a split at a checkpoint (None: the base model).

    Outputs are saved under `evaluation/`; the record is logged, and printed on stderr.
    """
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
    if decode:
        names = [subset, f"step-{record.step:08d}" if checkpoint else "base", decoding.name]
        save(run.path / "evaluation" / "-".join(filter(None, names)), record, decoded)
    MetricsLog(run.path).append(record)
    print(describe(record), file=sys.stderr)
    return record


@contextmanager
def opened_model(assembly: Assembly, checkpoint: Checkpoint | None) -> Iterator[CachedModel]:
    """The run's model at a checkpoint (None: without adapter's training), for inference."""
    assembly.source.check(assembly.own_tensors)
    ends = assembly.ends
    if checkpoint is not None:
        check_base(assembly, checkpoint)
        ends.part.load(checkpoint.select(ends.part.parameters))
    if assembly.config.strategy == "single":
        body = assembly.local_body
        if checkpoint is not None:
            body.part.load(checkpoint.select(body.part.parameters))
        yield CachedModel(ends.head, LocalMiddle(body.body, assembly.cuts), ends.tail, assembly.cuts, assembly.device)
        return
    step = checkpoint.step if checkpoint else 0
    state = checkpoint.select(checkpoint.names(assembly.cuts.body)) if checkpoint else {}
    with closing(assembly.transport()) as transport:
        check_before_start(transport, assembly.config.server, assembly.job_spec)
        with RemoteInference(
            assembly.job_spec,
            assembly.config.server,
            transport,
            step,
            state,
            assembly.config.patience_s,
            on_message=lambda text: print(f"torso: {text}", file=sys.stderr),
        ) as middle:
            yield CachedModel(ends.head, middle, ends.tail, assembly.cuts, assembly.device)


def describe(record: EvaluationRecord) -> str:
    """One line for people."""
    what = "adapted, " if record.adapted else "without adapter, "
    what += "first inputs only, " if record.partial else ""
    what += f"{record.decoding}, " if record.decoding else ""
    scores = "  ".join(f"{name} {value:.4f}" for name, value in record.scores.items())
    return f"{record.subset} ({what}step {record.step}): perplexity {record.perplexity:.3f}  {scores}".rstrip()
