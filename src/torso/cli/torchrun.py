"""`torso train` and `torso resume` as one of the ranks that the user's own torchrun started, on one machine or several.

Rank 0 alone reads the command line, and alone reads and writes the run directory, which need not be seen from other
machines. Every machine needs the data and the base weights; what it finds is compared with what rank 0 finds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch

from torso.cli.assembly import Assembly
from torso.cli.client_rank import LONGEST_WAIT_S, train
from torso.cli.training_run import check_identity, finish
from torso.config import RunConfig
from torso.errors import ConfigError, Interrupted, RequestError, TorsoError
from torso.parallel.group import Group
from torso.parallel.rank import StopRequest, end_rank
from torso.parallel.strategy_config import DATA_PARALLEL
from torso.randomness import hash64
from torso.training.agreement import on_leader
from torso.training.run_directory import RunDirectory

Prepare = Callable[[int], tuple[RunConfig, RunDirectory]]
"""On rank 0: everything that is checked and made before training, given the number of ranks."""


def run_as_a_rank(prepare: Prepare) -> NoReturn:
    """Train with the other ranks, then end; rank 0 evaluates and reports first."""
    end_rank(lambda stop: _work(prepare, stop))


def _work(prepare: Prepare, stop: StopRequest) -> None:
    group = Group.from_environment(LONGEST_WAIT_S, cuda=torch.cuda.is_available())
    try:
        with ExitStack() as stack:
            config, run, epochs = _begin(prepare, group, stack)
            train(run, config, epochs, group, stop)
            group.close()
            if group.rank == 0:
                finish(config, run)
    except TorsoError as error:
        _say_once(error, group.rank)
        raise


def _say_once(error: TorsoError, rank: int) -> None:
    """What ended all ranks alike is told by rank 0 alone, and what a rank lost by that rank."""
    if isinstance(error, Interrupted) and rank == 0:
        print(f"torso: {error}", file=sys.stderr, flush=True)
    elif isinstance(error, RequestError) and error.told:
        os._exit(error.exit_code)


def in_place_of_ranks(config: RunConfig, world_size: int) -> RunConfig:
    """The settings for ranks that are there already; raises ConfigError for a strategy that starts its own."""
    if config.strategy not in DATA_PARALLEL:
        known = ", ".join(DATA_PARALLEL)
        raise ConfigError(
            f"strategy is {config.strategy}, and this process is a rank of torchrun's",
            f"Start `torso` itself, or give one of {known}.",
        )
    return dataclasses.replace(config, nproc=world_size).checked()


def restarted(run: RunDirectory, world_size: int) -> RunConfig:
    """A run's settings for ranks that were started again; raises RunDirectoryError where their number changes bits."""
    config = in_place_of_ranks(RunConfig.from_toml(run.path / "config.toml"), world_size)
    assembly = Assembly(config)
    assembly.prepare_process()
    check_identity(assembly, run)
    return config


def is_restarted() -> bool:
    """Whether torchrun has started the ranks before."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _begin(prepare: Prepare, group: Group, stack: ExitStack) -> tuple[RunConfig, RunDirectory, int]:
    made: dict[str, RunDirectory] = {}

    def lead() -> dict[str, Any]:
        try:
            config, run = prepare(group.world_size)
        except SystemExit as error:
            raise ConfigError("the command line is refused", "See above.") from error
        stack.enter_context(run.lock())
        made["run"] = run
        return {"config": dataclasses.asdict(config), "path": str(run.path), "epochs": run.state.epochs}

    found = on_leader(group, lead)
    config = RunConfig(**found["config"])
    _check_alike(Assembly(config, int(os.environ.get("LOCAL_RANK", "0"))), group)
    return config, made.get("run") or RunDirectory.elsewhere(Path(found["path"])), found["epochs"]


def _check_alike(assembly: Assembly, group: Group) -> None:
    """Raise ConfigError, on every rank, when one has other data, weights or arithmetic than rank 0."""
    assembly.prepare_process()
    identity = assembly.identity
    names = sorted(identity)
    by_rank = group.all_gather_ints([hash64(json.dumps(identity[name], sort_keys=True)) >> 1 for name in names])

    def look() -> dict[str, Any]:
        for rank, theirs in enumerate(by_rank):
            differing = [name for name, ours, other in zip(names, by_rank[0], theirs, strict=True) if ours != other]
            if differing and not (differing == ["arithmetic"] and assembly.config.allow_inexact):
                raise ConfigError(
                    f"ranks 0 and {rank} differ in {', '.join(differing)}",
                    "Give every machine the same data, weights and torch.",
                )
        return {}

    on_leader(group, look)
