"""`torso train`: a new run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.cli.auto import choose, take_auto
from torso.cli.parsing import parse, take_option
from torso.config import RunConfig
from torso.training.run_directory import RunDirectory

USAGE = "train [--run-dir DIR] [--config FILE] [--strategy auto]"


def main(arguments: Sequence[str]) -> int:
    """Check, create the run, train, evaluate, report."""
    words = list(arguments)
    path = take_option(words, "--run-dir")
    automatic, has_server = take_auto(words), any(word.partition("=")[0] == "--server" for word in words)
    config = parse(RunConfig, USAGE, words)
    config = config if automatic else config.checked()
    from torso.cli.adapters import check_agrees, read_adapter, start_from
    from torso.cli.training_run import check, finish, run_ranks
    from torso.training import checkpoint as checkpoints

    folder = Path(path) if path else next_folder(Path("runs"))
    RunDirectory.check_unused(folder)
    adapter = None
    if config.init_adapter is not None:
        adapter, brought = read_adapter(Path(config.init_adapter), config)
        # on top of what the adapter brings, a flag that was given shows, even one that equals the usual default
        config = parse(RunConfig, USAGE, words, default=brought)
        check_agrees(config, brought)
    config = (choose(config, has_server) if automatic else config).checked()
    assembly = Assembly(config)
    check(assembly)
    run = RunDirectory.create(folder, config.to_toml(), config.epochs)
    print(f"run: {run.path}", file=sys.stderr)
    with run.lock():
        if adapter is not None:
            checkpoints.save(run.checkpoints, 0, start_from(adapter).state, assembly.identity)
        run_ranks(assembly, run)
        finish(config, run)
    return 0


def next_folder(parent: Path, name: str = "run") -> Path:
    """The first of name-001, name-002, … that is not there."""
    number = 1
    while (parent / f"{name}-{number:03d}").exists():
        number += 1
    return parent / f"{name}-{number:03d}"
