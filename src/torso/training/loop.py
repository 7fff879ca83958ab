"""The one training loop, alone or as one of several ranks; what it trains is a `Learner`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torso import faults
from torso.adapters.names import parameter_order
from torso.errors import GroupError, PeerError, StateLostError, TorsoError, TransportError
from torso.parallel.group import Group
from torso.parallel.memory import forget_peak, peak_memory
from torso.records import EpochRecord, EvaluationRecord, SaveRecord, StepRecord
from torso.training import checkpoint as checkpoints
from torso.training.agreement import Vote, on_leader, vote
from torso.training.best import best_step
from torso.training.checkpoint import Checkpoint
from torso.training.config import ScheduleConfig, TrainingConfig
from torso.training.learner import Learner, MicroBatch
from torso.training.meter import Meter, StepTotals
from torso.training.part import Norms, Update
from torso.training.run_directory import MetricsLog, RunDirectory
from torso.training.schedule import learning_rate


class Step(Protocol):
    """The micro-batches of one update."""

    @property
    def epoch(self) -> int:
        """From 1."""

    @property
    def micro_batches(self) -> Sequence[MicroBatch]:
        """In canonical order."""


class Plan(Protocol):
    """Steps as a pure function of their number (from 1)."""

    @property
    def steps_per_epoch(self) -> int:
        """Updates in one pass over the examples."""

    def step(self, number: int) -> Step:
        """The step of this number."""


class Listener(Protocol):
    """Who is told how training goes; called on rank 0."""

    def on_step(self, record: StepRecord, last_step: int) -> None:
        """After each update."""

    def on_epoch(self, record: EpochRecord) -> None:
        """After each epoch."""

    def on_message(self, text: str) -> None:
        """Something people should know: a roll-back, a damaged checkpoint."""


@dataclass(frozen=True)
class Outcome:
    """How `Trainer.run` ended."""

    step: int
    finished: bool


class Trainer:
    """Trains a run from its newest checkpoint to its target; every rank of the group has one."""

    def __init__(
        self,
        *,
        learner: Learner,
        plan: Plan,
        training: TrainingConfig,
        schedule: ScheduleConfig,
        group: Group,
        run: RunDirectory,
        info: dict[str, Any],
        listener: Listener,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._learner, self._plan = learner, plan
        self._training, self._schedule, self._group = training, schedule, group
        self._run, self._info, self._listener = run, info, listener
        self._stop_requested = stop_requested
        self._log = MetricsLog(run.path)
        self._meter = Meter(group, learner)
        self._step = 0
        self._roll_backs_here = 0
        self._saved_at = time.monotonic()

    def run(self, last_step: int) -> Outcome:
        """Train up to and including `last_step`; stops early, with a checkpoint, when asked to."""
        self._restore()
        stop = False
        while self._step < last_step and not stop:
            try:
                if self._step == 0:
                    self._save()
                stop = self._one_step(last_step)
            except (StateLostError, TransportError) as error:
                self._roll_back(error)
        if stop:
            self._save_to_stop()
        return Outcome(self._step, finished=self._step >= last_step)

    def _restore(self) -> None:
        step = self._newest()
        self._step = step or 0
        if self._group.rank == 0:
            self._log.cut_back(self._step)
        self._learner.open(None if step is None else lambda: checkpoints.load(self._run.checkpoints, step))
        self._saved_at = time.monotonic()

    def _newest(self) -> int | None:
        """The leader chooses which checkpoint is good, for all ranks."""

        def choose() -> dict[str, Any]:
            checkpoint = checkpoints.load_newest(self._run.checkpoints)
            if checkpoint is not None and checkpoint.warnings:
                self._warn(checkpoint)
            return {"step": checkpoint.step if checkpoint else None}

        step: int | None = on_leader(self._group, choose)["step"]
        return step

    def _warn(self, checkpoint: Checkpoint) -> None:
        """Of damaged checkpoints, and what they cost."""
        for warning in checkpoint.warnings:
            self._listener.on_message(f"warning: {warning}")
        logged = [record.step for record in self._log.read(StepRecord)]
        lost = max([*logged, *checkpoints.steps(self._run.checkpoints)]) - checkpoint.step
        self._listener.on_message(f"warning: {lost} step{'s' if lost != 1 else ''} will be replayed")

    def _roll_back(self, error: TorsoError) -> None:
        """Return to the newest checkpoint; the steps since are done again, with the same bits."""
        self._roll_backs_here += 1
        if self._roll_backs_here > 20:
            raise TorsoError(f"step {self._step + 1} was rolled back 20 times, last because {error}") from error
        lost_at = self._step
        if self._group.rank == 0:
            self._listener.on_message(f"step {lost_at + 1} failed ({error}); going back to the last checkpoint")
        self._restore()
        if self._group.rank == 0:
            self._listener.on_message(f"replaying from step {self._step}, {lost_at - self._step} steps")

    def _one_step(self, last_step: int) -> bool:
        """One update; returns whether somebody asked to stop."""
        number = self._step + 1
        step = self._plan.step(number)
        self._meter.start()
        stop = self._compute(number, step)
        totals = self._meter.gather(len(step.micro_batches))
        update, norm = self._update(number, totals, self._learner.prepare(number, len(step.micro_batches)))
        self._learner.commit(number, update)
        faults.reach("client", self._group.rank, "update.after", number)
        self._step, self._roll_backs_here = number, 0
        self._record(step, totals, update, norm, last_step)
        if self._save_is_due(number, last_step):
            self._save()
        return stop

    def _compute(self, number: int, step: Step) -> bool:
        """This rank's micro-batches; then all ranks vote."""
        wish = Vote.STOP if self._stop_requested() else Vote.OK
        failure: TorsoError | None = None
        try:
            self._meter.results = self._learner.compute(number, step.micro_batches)
        except GroupError:
            raise  # nobody can be asked for a vote
        except (StateLostError, TransportError) as error:
            wish, failure = Vote.ROLL_BACK, error
        except TorsoError as error:
            wish, failure = Vote.FATAL, error
        decision = vote(self._group, wish)
        if failure is not None and wish == decision:
            raise failure
        if decision == Vote.FATAL:
            raise PeerError(f"another rank gave up at step {number}")
        if decision == Vote.ROLL_BACK:
            raise StateLostError(f"another rank lost step {number}")
        return decision == Vote.STOP

    def _update(self, number: int, totals: StepTotals, norms: Norms) -> tuple[Update, float]:
        """The update that all parties make, and the global norm (of the mean gradient, before clipping)."""
        squared = norms.squared
        divisor = float(max(1, totals.target_tokens))
        norm = math.sqrt(sum(squared[name] for name in parameter_order(squared))) / divisor
        limit = self._training.max_grad_norm
        clip = min(1.0, limit / (norm + 1e-6)) if limit > 0.0 else 1.0
        rate = learning_rate(self._schedule, number, self._plan.steps_per_epoch)
        return Update(divisor, clip if norms.finite else 1.0, rate, skip=not norms.finite), norm

    def _record(self, step: Step, totals: StepTotals, update: Update, norm: float, last_step: int) -> None:
        record = self._meter.step_record(self._step, step.epoch, totals, update, norm)
        if self._group.rank != 0:
            return
        self._log.append(record)
        self._listener.on_step(record, last_step)
        if self._step % self._plan.steps_per_epoch == 0:
            steps = [r for r in self._log.read() if isinstance(r, StepRecord) and r.epoch == step.epoch]
            summary = self._meter.epoch_record(steps)
            self._log.append(summary)
            self._listener.on_epoch(summary)

    def _save_is_due(self, number: int, last_step: int) -> bool:
        minutes = (time.monotonic() - self._saved_at) / 60.0
        overdue = self._group.rank == 0 and minutes >= self._training.checkpoint_every_minutes
        ends_epoch = number % self._plan.steps_per_epoch == 0 or number == last_step
        fixed = ends_epoch or number % self._training.checkpoint_every_steps == 0
        return fixed or vote(self._group, Vote.STOP if overdue else Vote.OK) == Vote.STOP

    def _save(self) -> None:
        """Collect the state of all parties and write it as one checkpoint, on the leader."""
        # the leader looks: another rank would come late, and find what the leader is saving now
        if on_leader(self._group, lambda: {"whole": checkpoints.is_whole(self._run.checkpoints, self._step)})["whole"]:
            return
        started = time.monotonic()
        forget_peak()
        state = self._learner.state(self._step)

        def write() -> dict[str, Any]:
            folder = self._run.checkpoints
            self._log.sync()
            besides = self._kept_besides([*checkpoints.steps(folder), self._step])
            checkpoints.save(folder, self._step, state, self._info, self._training.keep_checkpoints, besides)
            seconds = time.monotonic() - started
            self._log.append(SaveRecord(step=self._step, seconds=seconds, memory_bytes=peak_memory()))
            return {}

        on_leader(self._group, write)
        self._saved_at = time.monotonic()

    def _kept_besides(self, saved: Sequence[int]) -> list[int]:
        """The best one, and the ends of the newest epochs: which was best is known when they have been evaluated."""
        best = best_step(self._log.read(EpochRecord, EvaluationRecord), saved, self._training.best_by)
        per_epoch, keep = self._plan.steps_per_epoch, self._training.keep_epochs
        ends = [step for step in sorted(saved) if step and step % per_epoch == 0]
        return [*ends[max(0, len(ends) - keep) :], *([] if best is None else [best])]

    def _save_to_stop(self) -> None:
        """A server that is lost just now is not waited for: the last checkpoint stands, and `resume` replays."""
        try:
            self._save()
        except (StateLostError, TransportError) as error:
            lost_at = self._step
            self._step = on_leader(self._group, lambda: {"step": checkpoints.steps(self._run.checkpoints)[-1]})["step"]
            if self._group.rank == 0:
                text = f"step {lost_at} could not be saved ({error}); the last checkpoint is of step {self._step}"
                self._listener.on_message(text)
