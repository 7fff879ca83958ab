"""Requests under way: a repeated one joins the first, a late one is told so, and one that hangs is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from torso.errors import StateLostError, TransportError


@dataclass(eq=False)
class _Task:
    """One computation; nobody may be waiting for it any more."""

    work: Callable[[], Any]
    future: asyncio.Future[Any] = field(init=False)
    waiting: int = 0
    started: float | None = None
    """None before it begins and after it ends."""

    def run(self) -> Any:
        """In a thread."""
        self.started = time.monotonic()
        try:
            return self.work()
        finally:
            self.started = None


class UnderWay:
    """Belongs to one event loop. Whoever waits longer than `answer_within_s` is told that the work goes on."""

    def __init__(self, answer_within_s: float, hang_timeout_s: float) -> None:
        self._answer_within_s, self._hang_timeout_s = answer_within_s, hang_timeout_s
        self._tasks: dict[Hashable, _Task] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def hangs(self) -> bool:
        """Whether something is being computed for longer than anything may take; waiting for a turn does not count."""
        latest = time.monotonic() - self._hang_timeout_s
        return any(task.started is not None and task.started < latest for task in list(self._tasks.values()))

    async def run(self, pool: Executor, key: Hashable, work: Callable[[], Any], patient: bool = False) -> Any:
        """What `work` returns in a thread of the pool; the same key while it is under way shares one computation.

        Raises TransportError (still_working) when it takes long, unless the caller is `patient`, and StateLostError
        (group_failed) when something hangs.
        """
        task = self._tasks.get(key) or self._start(pool, key, work)
        task.waiting += 1
        try:
            await asyncio.wait({task.future}, timeout=None if patient else self._answer_within_s)
        finally:
            task.waiting -= 1
        if task.future.done():
            self._forget(key, task)
            return task.future.result()
        if self.hangs():
            raise StateLostError("a computation of this worker hangs", "It is being restarted.", "group_failed")
        raise TransportError("the worker is still computing", "Send the same request again.", "still_working")

    def _start(self, pool: Executor, key: Hashable, work: Callable[[], Any]) -> _Task:
        loop, task = asyncio.get_running_loop(), _Task(work)
        task.future = loop.run_in_executor(pool, task.run)
        task.future.add_done_callback(lambda _: self._ended(key, task))
        self._tasks[key] = task
        return task

    def _ended(self, key: Hashable, task: _Task) -> None:
        """A client that was told to ask again finds the answer for a while."""
        failed = not task.future.cancelled() and task.future.exception() is not None
        if not task.waiting and not failed and not task.future.cancelled():
            asyncio.get_running_loop().call_later(self._answer_within_s, self._forget, key, task)
        elif not task.waiting:
            self._forget(key, task)

    def _forget(self, key: Hashable, task: _Task) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
