"""One client rank: `python -m torso.cli.client_rank RUN_DIR`, or the whole of a run in one process."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torso.errors import Interrupted
from torso.parallel.rank import StopRequest, end_rank

if TYPE_CHECKING:
    from torso.cli.assembly import Assembly
    from torso.config import RunConfig
    from torso.parallel.group import Group
    from torso.training.learner import Learner
    from torso.training.loop import Listener, Outcome, Trainer
    from torso.training.run_directory import RunDirectory

LONGEST_WAIT_S = 600.0
"""A rank is waited for so much longer than a lost server, then it is frozen; one that died is noticed at once."""


def train(
    run: RunDirectory,
    config: RunConfig,
    epochs: int,
    group: Group | None = None,
    stop: StopRequest | None = None,
) -> Outcome:
    """Train the run to so many epochs; raises Interrupted when a signal asked to stop.

    Only rank 0 reads and writes `run`; in a split all ranks read it.
    """
    # what is heavy is imported here, so that a signal that comes meanwhile is noticed
    from rich.console import Console

    from torso.cli.assembly import Assembly
    from torso.parallel.group import Group
    from torso.report.progress import ProgressLine

    stop, group = stop or StopRequest(), group or Group.solo()
    if group.rank == 0:
        _check_started(run, config)
    assembly = Assembly(config, int(os.environ.get("LOCAL_RANK", "0")))
    assembly.prepare_process()
    last_step = epochs * assembly.plan.steps_per_epoch
    with (
        ProgressLine(Console(stderr=True, quiet=group.rank != 0)) as listener,
        contextlib.closing(assembly.learner(run, group, listener.on_message)) as learner,
    ):
        outcome = _trainer(assembly, run, group, learner, listener, stop).run(last_step)
    if not outcome.finished:
        text = f"stopped at step {outcome.step} of {last_step}; the state is saved"
        raise Interrupted(text, f"Go on with `torso resume {run.path}`.")
    return outcome


def _check_started(run: RunDirectory, config: RunConfig) -> None:
    """Raise RunDirectoryError when the adapter to start from was never saved: a fresh one would take its place."""
    from torso.errors import RunDirectoryError
    from torso.training import checkpoint as checkpoints

    if config.init_adapter is not None and not checkpoints.steps(run.checkpoints):
        raise RunDirectoryError(
            f"{run.path} ended before the adapter of {config.init_adapter} was saved in it", "Train it anew."
        )


def _trainer(
    assembly: Assembly, run: RunDirectory, group: Group, learner: Learner, listener: Listener, stop: StopRequest
) -> Trainer:
    from torso.training.loop import Trainer

    return Trainer(
        learner=learner,
        plan=assembly.plan,
        training=assembly.config.training,
        schedule=assembly.config.schedule_config,
        group=group,
        run=run,
        info=assembly.identity,
        listener=listener,
        stop_requested=stop,
    )


def main(path: str, stop: StopRequest) -> None:
    """A rank under the agent; raises GroupError where the group should be restarted."""
    from torso.cli.assembly import on_gpus
    from torso.config import RunConfig
    from torso.parallel.group import Group
    from torso.training.run_directory import RunDirectory

    run = RunDirectory(Path(path))
    # The others wait in a collective while one waits for a lost server, or for a worker that computes.
    config = RunConfig.from_toml(run.path / "config.toml")
    cuda = config.strategy != "split" and on_gpus(config)
    group = Group.from_environment(config.patience_s + LONGEST_WAIT_S, cuda)
    train(run, config, run.state.epochs, group, stop)
    group.close()


if __name__ == "__main__":
    end_rank(lambda stop: main(sys.argv[1], stop))
