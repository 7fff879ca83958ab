"""One client rank: `python -m torso.cli.client_rank RUN_DIR`, or the whole of a run in one process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from torso.cli.assembly import Assembly
from torso.config import RunConfig
from torso.errors import GroupError, Interrupted, TorsoError
from torso.parallel.group import Group
from torso.parallel.launch import write_outcome
from torso.parallel.lifetime import die_with_parent
from torso.report.progress import ProgressLine
from torso.training.loop import Outcome, Trainer
from torso.training.run_directory import RunDirectory


class StopFlag:
    """Set by SIGINT or SIGTERM: the loop finishes its step, saves and stops. A second signal ends at once."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.requested = True


def train(run: RunDirectory, group: Group | None = None) -> Outcome:
    """Train the run to its recorded target; raises Interrupted when a signal asked to stop."""
    config = RunConfig.from_toml(run.path / "config.toml")
    assembly = Assembly(config, int(os.environ.get("LOCAL_RANK", "0")))
    assembly.use_threads()
    group = group or Group.solo()
    flag = StopFlag()
    last_step = run.state.epochs * assembly.plan.steps_per_epoch
    with ProgressLine() as listener, contextlib.closing(assembly.middle(run, group, listener.on_message)) as middle:
        trainer = Trainer(
            ends=assembly.ends,
            middle=middle,
            plan=assembly.plan,
            training=config.training,
            schedule=config.schedule_config,
            group=group,
            run=run,
            info=assembly.identity,
            listener=listener,
            window=config.window,
            stop_requested=lambda: flag.requested,
        )
        outcome = trainer.run(last_step)
    if not outcome.finished:
        text = f"stopped at step {outcome.step} of {last_step}; the state is saved"
        raise Interrupted(text, f"Go on with `torso resume {run.path}`.")
    return outcome


def main(path: str) -> int:
    """A rank under the agent. Exit code 0: it ended for good, well or not; 1: the group should be restarted."""
    die_with_parent()
    try:
        group = Group.from_environment()
        train(RunDirectory(Path(path)), group)
        group.close()
    except GroupError as error:
        print(f"torso: rank {os.environ.get('RANK')}: {error}", file=sys.stderr)
        return 1
    except TorsoError as error:
        write_outcome(error)
        # peers may wait in a collective for this rank: leave without ceremony
        sys.stdout.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
