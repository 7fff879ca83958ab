"""`torso train`: a new run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.cli.auto import choose, take_auto
from torso.cli.parsing import parse, take_option
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.parallel.launch import under_torchrun
from torso.training.run_directory import RunDirectory

USAGE = "train [--run-dir DIR] [--config FILE] [--strategy auto]"


def main(arguments: Sequence[str]) -> int:
    """Check, create the run, train, evaluate, report."""
    from torso.cli.training_run import finish, run_ranks

    if under_torchrun():
        from torso.cli.torchrun import run_as_a_rank

        run_as_a_rank(lambda ranks: _prepare_for(ranks, arguments))
    assembly, run = _prepare(arguments)
    with run.lock():
        run_ranks(assembly, run)
        finish(assembly.config, run)
    return 0


def _prepare_for(ranks: int, arguments: Sequence[str]) -> tuple[RunConfig, RunDirectory]:
    """Under torchrun: a new run, or the same one when its ranks were started again."""
    from torso.cli.torchrun import in_place_of_ranks, is_restarted, restarted

    path = take_option(list(arguments), "--run-dir")
    if path is None:
        raise ConfigError("no --run-dir is given under torchrun", "Name it, so that ranks started again find it.")
    if is_restarted() and (Path(path) / "run.json").is_file():
        run = RunDirectory(Path(path))
        return restarted(run, ranks), run
    if take_auto(list(arguments)):
        raise ConfigError("strategy is auto under torchrun", "Ask `torso plan` first, then name the strategy.")
    assembly, run = _prepare(arguments, lambda config: in_place_of_ranks(config, ranks))
    return assembly.config, run


def _prepare(
    arguments: Sequence[str], settle: Callable[[RunConfig], RunConfig] = lambda config: config
) -> tuple[Assembly, RunDirectory]:
    """Everything before training."""
    words = list(arguments)
    path = take_option(words, "--run-dir")
    automatic, named = take_auto(words), any(word.partition("=")[0] == "--server" for word in words)
    from torso.cli.adapters import start_from, with_adapter
    from torso.cli.training_run import check
    from torso.training import checkpoint as checkpoints

    folder = Path(path) if path else next_folder(Path("runs"))
    RunDirectory.check_unused(folder)

    def read(default: RunConfig | None = None) -> RunConfig:
        config = parse(RunConfig, USAGE, words, default=default)
        return config if automatic else settle(config.checked())

    adapter, config = with_adapter(read(), read)
    if automatic:
        named = named or config.server != RunConfig().server  # in a file
        config = settle(choose(config, has_server=named).checked())
    assembly = Assembly(config)
    check(assembly)
    run = RunDirectory.create(folder, config.to_toml(), config.epochs)
    print(f"run: {run.path}", file=sys.stderr)
    if adapter is not None:
        with run.lock():
            checkpoints.save(run.checkpoints, 0, start_from(adapter).state, assembly.identity)
    return assembly, run


def next_folder(parent: Path, name: str = "run") -> Path:
    """The first of name-001, name-002, … that is not there."""
    number = 1
    while (parent / f"{name}-{number:03d}").exists():
        number += 1
    return parent / f"{name}-{number:03d}"
