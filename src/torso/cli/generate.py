"""`torso generate RUN_DIR --mr "name[…], …"`: text for one input, with a run's model or a peft adapter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.cli.chosen import chosen
from torso.cli.model_arguments import ModelArguments
from torso.cli.parsing import parse
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(ModelArguments):
    """Decode one input with a run's model, or with a peft adapter."""

    mr: str | None = None
    """A meaning representation, e.g. "name[Blue Spice], eatType[pub]"."""
    prompt: str | None = None
    """A prompt as it stands."""


def main(arguments: Sequence[str]) -> int:
    """Print the text."""
    from torso.cli.opened import opened_model
    from torso.data.corpus import Group
    from torso.data.slots import prompt_of
    from torso.evaluation.evaluate import decode_groups

    options = parse(GenerateArguments, "generate", arguments)
    if (options.mr is None) == (options.prompt is None):
        raise ConfigError("neither or both of --mr and --prompt are given", "Give one of them.")
    options.check_model()
    decoding = DecodingConfig.of(options)
    config, checkpoint = options.of_adapter() if options.run_dir is None else _of_run(options, options.run_dir)
    assembly = Assembly(config)
    assembly.prepare_process()
    prompt = prompt_of(options.mr) if options.mr is not None else options.prompt or ""
    group = Group(options.mr or prompt, prompt, ())
    with opened_model(assembly, checkpoint) as model:
        [decoded] = decode_groups(model, assembly.tokenizer, [group], assembly.max_tokens, decoding)
    print(json.dumps({"prompt": prompt, "output": decoded.output}) if options.json else decoded.output)
    return 0


def _of_run(options: GenerateArguments, path: Path) -> tuple[RunConfig, Checkpoint]:
    run = RunDirectory(path)
    return options.of_run(run), chosen(run, options.checkpoint)
