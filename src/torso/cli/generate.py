"""`torso generate RUN_DIR --mr "name[…], …"`: text for one input, with a run's model or a peft adapter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from torso.cli.assembly import Assembly
from torso.cli.chosen import chosen
from torso.cli.parsing import parse, refuse_idle
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(DecodingConfig):
    """Decode one input."""

    run_dir: Annotated[Path | None, tyro.conf.Positional] = None
    """The run."""
    adapter: Path | None = None
    """A peft adapter's folder in place of a run; --model, --tokenizer and --threads belong to it."""
    model: str = "mini"
    """The adapter's model."""
    tokenizer: str | None = None
    """Folder of another tokenizer than the model's."""
    threads: int | None = None
    """Intra-op threads on a CPU. Default: all cores."""
    mr: str | None = None
    """A meaning representation, e.g. "name[Blue Spice], eatType[pub]"."""
    prompt: str | None = None
    """A prompt as it stands."""
    checkpoint: str = "last"
    """last, best, or a step."""
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
    """Print the text."""
    from torso.cli.opened import opened_model
    from torso.data.corpus import Group
    from torso.data.slots import prompt_of
    from torso.evaluation.evaluate import decode_groups

    options = parse(GenerateArguments, "generate", arguments)
    if (options.mr is None) == (options.prompt is None):
        raise ConfigError("neither or both of --mr and --prompt are given", "Give one of them.")
    if (options.run_dir is None) == (options.adapter is None):
        raise ConfigError("neither or both of a run and --adapter are given", "Give one of them.")
    decoding = DecodingConfig.of(options)
    config, checkpoint = _of_adapter(options) if options.run_dir is None else _of_run(options, options.run_dir)
    assembly = Assembly(config)
    assembly.use_threads()
    prompt = prompt_of(options.mr) if options.mr is not None else options.prompt or ""
    group = Group(options.mr or prompt, prompt, ())
    with opened_model(assembly, checkpoint) as model:
        [decoded] = decode_groups(model, assembly.tokenizer, [group], assembly.max_tokens, decoding)
    print(json.dumps({"prompt": prompt, "output": decoded.output}) if options.json else decoded.output)
    return 0


def _of_run(options: GenerateArguments, path: Path) -> tuple[RunConfig, Checkpoint]:
    from torso.cli.evaluate import here

    refuse_idle(options, "a run", ["model", "tokenizer", "threads"])
    run = RunDirectory(path)
    config = here(run, options.server, options.device, options.allow_inexact, options.whole)
    return config, chosen(run, options.checkpoint)


def _of_adapter(options: GenerateArguments) -> tuple[RunConfig, Checkpoint]:
    from torso.cli.adapters import without_run

    refuse_idle(options, "--adapter", ["checkpoint", "server", "whole", "allow_inexact"])
    settings = {name: getattr(options, name) for name in ("model", "tokenizer", "threads")}
    return without_run(options.adapter or Path(), device=options.device or ("auto",), **settings)
