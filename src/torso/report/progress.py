"""How training goes, on one line that is rewritten on a terminal and on plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from torso.records import EpochRecord, StepRecord
from torso.report.units import duration, number, size

_PLAIN_EVERY_SECONDS = 10.0
_RECENT = 50


class ProgressLine:
    """Told of each step and epoch by the training loop; a context manager, so that the line ends cleanly.

    Loss and tokens/s are means over recent steps. The time left counts the wall clock between steps, so
    checkpoints and waiting are in it.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._printed_at = -_PLAIN_EVERY_SECONDS
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_step(self, record: StepRecord, last_step: int) -> None:
        """After each update."""
        if self._recent and record.step <= self._recent[-1].step:
            self._recent.clear()
            self._times.clear()
        self._recent.append(record)
        self._times.append(self._clock())
        text = self.text(last_step)
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=record.step, total=last_step)
        elif record.step == last_step or self._clock() - self._printed_at >= _PLAIN_EVERY_SECONDS:
            self._printed_at = self._clock()
            self._print(text)

    def on_epoch(self, record: EpochRecord) -> None:
        """After each epoch: a line that stays."""
        traffic = f", {size(record.bytes_sent)} sent" if record.bytes_sent else ""
        done = f"epoch {record.epoch} done: loss {number(record.loss, 4)}"
        norm, rate = number(record.grad_norm_mean), number(record.tokens_per_second, 0)
        self._print(f"{done}, gradient norm {norm}, {rate} tokens/s, {duration(record.seconds)}{traffic}")

    def on_message(self, text: str) -> None:
        """Something people should know; it stays on the screen."""
        self._print(text)

    def text(self, last_step: int) -> str:
        """The line as it stands after the last step."""
        newest = self._recent[-1]
        targets = sum(r.target_tokens for r in self._recent)
        loss = sum(r.loss * r.target_tokens for r in self._recent) / max(1, targets)
        rate = sum(r.real_tokens for r in self._recent) / max(1e-9, sum(r.seconds for r in self._recent))
        left = self._seconds_a_step() * (last_step - newest.step)
        return (
            f"step {newest.step}/{last_step}  epoch {newest.epoch}  loss {number(loss)}  "
            f"{number(rate, 0)} tokens/s  {duration(left)} left"
        )

    def _seconds_a_step(self) -> float:
        """By the clock between recent steps; by the step's own time while there is only one."""
        if len(self._times) < 2:
            return self._recent[-1].seconds
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class DecodingProgress:
    """Told how many inputs are decoded, now and then says so on stderr, with the time left."""

    def __init__(self, num_inputs: int, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
        self._num, self._clock, self._console = num_inputs, clock, console or Console(stderr=True)
        self._started = self._printed_at = clock()

    def __call__(self, done: int) -> None:
        now = self._clock()
        if done == self._num or now - self._printed_at < _PLAIN_EVERY_SECONDS:
            return
        self._printed_at = now
        left = duration((now - self._started) / max(1, done) * (self._num - done))
        self._console.print(f"decoded {done} of {self._num} inputs, {left} left", highlight=False, soft_wrap=True)
