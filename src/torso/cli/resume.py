"""`torso resume RUN_DIR`: go on to the recorded target; `--epochs N` first raises it by N."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.cli.parsing import parse, take_option
from torso.config import RunConfig, check_resume
from torso.errors import ConfigError
from torso.training.files import replace_atomically
from torso.training.run_directory import RunDirectory
from torso.training.schedule import check_target

USAGE = "resume RUN_DIR [--epochs N]"


def main(arguments: Sequence[str]) -> int:
    """Check what changed, raise the target, train, evaluate, report."""
    words = list(arguments)
    more = take_option(words, "--epochs")
    if words[:1] in (["-h"], ["--help"]):
        parse(RunConfig, USAGE, words)
    if not words or words[0].startswith("-"):
        raise ConfigError("no run directory is given", "Write `torso resume RUN_DIR`.")
    run = RunDirectory(Path(words.pop(0)))
    old = RunConfig.from_toml(run.path / "config.toml")
    new = parse(RunConfig, USAGE, words, default=old).checked()
    check_resume(old, new)
    with run.lock():
        _resume(run, new, _number(more))
    return 0


def _resume(run: RunDirectory, config: RunConfig, more: int) -> None:
    from torso.cli.training_run import check, check_identity, finish, run_ranks

    target = run.state.epochs + more
    check_target(config.schedule_config, target)
    assembly = Assembly(config)
    check(assembly)
    check_identity(assembly, run)
    config = dataclasses.replace(config, epochs=target)
    replace_atomically(run.path / "config.toml", config.to_toml().encode())
    run.set_epochs(target)
    run_ranks(assembly, run)
    finish(config, run)


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"--epochs is {text!r}", "Give the number of epochs to add, 1 or more.")
    return int(text)
