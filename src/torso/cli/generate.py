"""`torso generate RUN_DIR --mr "name[…], …"`: text for one input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.cli.chosen import chosen
from torso.cli.parsing import parse
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.training.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(DecodingConfig):
    """Decode one input."""

    run_dir: Path
    """The run."""
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
    from torso.cli.evaluate import here
    from torso.cli.opened import opened_model
    from torso.data.corpus import Group
    from torso.data.slots import prompt_of
    from torso.evaluation.evaluate import decode_groups

    options = parse(GenerateArguments, "generate", arguments)
    if (options.mr is None) == (options.prompt is None):
        raise ConfigError("neither or both of --mr and --prompt are given", "Give one of them.")
    decoding = DecodingConfig.of(options)
    run = RunDirectory(options.run_dir)
    assembly = Assembly(here(run, options.server, options.device, options.allow_inexact, options.whole))
    assembly.use_threads()
    prompt = prompt_of(options.mr) if options.mr is not None else options.prompt or ""
    group = Group(options.mr or prompt, prompt, ())
    with opened_model(assembly, chosen(run, options.checkpoint)) as model:
        [decoded] = decode_groups(model, assembly.tokenizer, [group], assembly.max_tokens, decoding)
    print(json.dumps({"prompt": prompt, "output": decoded.output}) if options.json else decoded.output)
    return 0
