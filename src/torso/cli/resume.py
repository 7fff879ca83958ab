"""`torso resume RUN_DIR`: go on to the recorded target; `--epochs N` first raises it by N."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.cli.parsing import parse, take_option
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.files import replace_atomically
from torso.parallel.launch import under_torchrun
from torso.training.run_directory import RunDirectory
from torso.training.schedule import check_target

USAGE = "resume RUN_DIR [--epochs N]"

MAY_CHANGE = frozenset(
    {
        "epochs",
        "server",
        "clients",
        "window",
        "wire",
        "read_timeout_s",
        "patience_s",
        "device",
        "strategy",
        "nproc",
        "shard_size",
        "deterministic",
        "activation_checkpointing",
        "compile",
        "threads",
        "checkpoint_every_steps",
        "checkpoint_every_minutes",
        "keep_checkpoints",
        "keep_epochs",
        "best_by",
        "evaluate",
        "allow_inexact",
    }
)
"""What may change on resume; everything else decides the bits. Where one of these does, the arithmetic has it."""


def main(arguments: Sequence[str]) -> int:
    """Check what changed, raise the target, train, evaluate, report."""
    if under_torchrun():
        from torso.cli.torchrun import run_as_a_rank

        run_as_a_rank(lambda ranks: _prepare_for(ranks, arguments))
    run, old, new, more = _read(arguments)
    from torso.cli.training_run import finish, run_ranks

    with run.lock():
        assembly = _prepare(run, old, new, more)
        run_ranks(assembly, run)
        finish(assembly.config, run)
    return 0


def _prepare_for(ranks: int, arguments: Sequence[str]) -> tuple[RunConfig, RunDirectory]:
    """Under torchrun; ranks that were started again do not raise the target again."""
    from torso.cli.torchrun import in_place_of_ranks, is_restarted, restarted

    run, old, new, more = _read(arguments)
    if is_restarted():
        return restarted(run, ranks), run
    with run.lock():
        return _prepare(run, old, in_place_of_ranks(new, ranks), more).config, run


def _read(arguments: Sequence[str]) -> tuple[RunDirectory, RunConfig, RunConfig, int]:
    """The run, its settings, those that are asked for, and how many epochs more."""
    words = list(arguments)
    more = take_option(words, "--epochs")
    if words[:1] in (["-h"], ["--help"]):
        parse(RunConfig, USAGE, words)
    if not words or words[0].startswith("-"):
        raise ConfigError("no run directory is given", "Write `torso resume RUN_DIR`.")
    run = RunDirectory(Path(words.pop(0)))
    old = RunConfig.from_toml(run.path / "config.toml")
    new = parse(RunConfig, USAGE, words, default=old).checked()
    return run, old, new, _number(more)


def _prepare(run: RunDirectory, old: RunConfig, config: RunConfig, more: int) -> Assembly:
    """Everything before training."""
    from torso.cli.training_run import check, check_identity

    check_resume(old, config)
    target = run.state.epochs + more
    check_target(config.schedule_config, target)
    assembly = Assembly(config)
    check(assembly)
    check_identity(assembly, run)
    config = dataclasses.replace(config, epochs=target)
    replace_atomically(run.path / "config.toml", config.to_toml().encode())
    run.set_epochs(target)
    return Assembly(config)


def check_resume(old: RunConfig, new: RunConfig) -> None:
    """Raise ConfigError naming the settings that differ though they may not."""
    changed = [
        f"{field.name} ({getattr(old, field.name)} to {getattr(new, field.name)})"
        for field in dataclasses.fields(RunConfig)
        if field.name not in MAY_CHANGE and getattr(old, field.name) != getattr(new, field.name)
    ]
    if changed:
        raise ConfigError(
            f"a resumed run keeps its settings, but these differ: {', '.join(changed)}", "Start a new run."
        )


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"--epochs is {text!r}", "Give the number of epochs to add, 1 or more.")
    return int(text)
