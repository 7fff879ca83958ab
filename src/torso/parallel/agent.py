"""torch's elastic agent with Torso's manners; see `torso.parallel.launch`."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from torso.parallel.rank import read_outcome

RESTART_GRACE_S = 3
"""Time that the other ranks have to end by themselves when one has died."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def worker_spec(entry: str, arguments: tuple[str, ...], ranks: int, max_restarts: int, run_id: str) -> WorkerSpec:
    """A group on this machine alone, met at a free port."""
    parameters = RendezvousParameters(
        backend="c10d", endpoint="localhost:0", run_id=run_id, min_nodes=1, max_nodes=1, local_addr="127.0.0.1"
    )
    return WorkerSpec(
        role="torso",
        local_world_size=ranks,
        entrypoint=entry,
        args=arguments,
        rdzv_handler=get_rendezvous_handler(parameters),
        max_restarts=max_restarts,
        monitor_interval=0.1,
        local_addr="127.0.0.1",
    )


class Agent(LocalElasticAgent):
    """Starts the ranks, restarts them while that can help, and passes on a request to stop."""

    def __init__(
        self,
        spec: WorkerSpec,
        log_folder: str,
        outcomes: Path,
        progress: Callable[[], Any] | None,
        grace_s: int,
        refill_after_s: float,
    ) -> None:
        super().__init__(spec, logs_specs=DefaultLogsSpecs(log_dir=log_folder), shutdown_timeout=grace_s)
        self.failure = ""
        """Why the group was given up, unless a rank wrote it itself."""
        self._outcomes, self._measure, self._refill_after_s = outcomes, progress, refill_after_s
        self._budget, self._restarts = spec.max_restarts, 0
        self._last_failure, self._progress = time.monotonic(), progress() if progress else None
        _be_quiet()

    def run_to_the_end(self) -> bool:
        """Until all ranks ended well, failed for good, or were asked to stop; returns whether they were asked."""
        before = {number: signal.signal(number, _raise) for number in STOP_SIGNALS}
        stopped = False
        try:
            self.run()
        except SignalException:
            stopped = True
            self._check_stopped()
        finally:
            self._kill()
            self._worker_group.spec.rdzv_handler.shutdown()
            for number, handler in before.items():
                signal.signal(number, handler)
        return stopped

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        died = self._end_with_the_dead()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._on_failure(died or _describe(result))
        return result

    def _end_with_the_dead(self) -> str:
        """When a rank has died, end the others: what they hold is lost, and the base class would wait half a minute.

        Returns which rank died how, or nothing.
        """
        processes = self._processes()
        died = [(rank, code) for rank, code in enumerate(p.poll() for p in processes) if code]
        if not died:
            return ""
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + RESTART_GRACE_S
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._kill()
        return f"rank {died[0][0]} ended with {_ending(died[0][1])}"

    def _on_failure(self, how: str) -> None:
        """Decide whether the base class, which looks at the remaining restarts next, starts the group again."""
        self._refill()
        if read_outcome(self._outcomes) is not None:
            self._remaining_restarts = 0
        elif self._remaining_restarts == 0:
            again = f" after {self._restarts} restarts without progress" if self._restarts else ""
            self.failure = f"{how}{again}; what it last said stands above"
        else:
            self._restarts += 1
            count = f"{self._restarts} of {self._budget} without progress"
            print(f"torso: {how}; restarting the group ({count})", file=sys.stderr, flush=True)

    def _refill(self) -> None:
        """A new budget when something was achieved since the last failure."""
        now, progress = time.monotonic(), self._measure() if self._measure else None
        long_enough = now - self._last_failure >= self._refill_after_s
        advanced = progress != self._progress if self._measure else long_enough
        self._last_failure, self._progress = now, progress
        if advanced and self._restarts:
            # Raise the limit too: their difference numbers the restarts, and no number may come twice.
            self._worker_group.spec.max_restarts += self._budget - self._remaining_restarts
            self._remaining_restarts, self._restarts = self._budget, 0

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Before a restart; unlike `_shutdown`, a request to stop is still taken."""
        super()._shutdown(signal.SIGTERM)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Ask ranks to end with SIGTERM whatever the signal was (SIGINT makes a starting Python print a traceback)."""
        if self._pcontext is None:
            return
        for number in STOP_SIGNALS:
            signal.signal(number, self._kill)
        super()._shutdown(signal.SIGTERM, timeout)

    def _kill(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End ranks that are still there at once; also what a second Ctrl-C does."""
        for process in self._processes():
            if process.poll() is None:
                process.kill()

    def _check_stopped(self) -> None:
        codes = [process.poll() for process in self._processes()]
        if any(code not in (0, -signal.SIGTERM) for code in codes):
            self.failure = f"ranks were asked to stop and ended with {', '.join(map(_ending, codes))}"

    def _processes(self) -> list[Any]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return [handler.proc for handler in handlers.values()]


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    """The agent's own handler, from before it has started any rank."""
    raise SignalException(f"got signal {number}", sigval=signal.Signals(number))


def _describe(result: RunResult) -> str:
    rank, failure = min(result.failures.items(), key=lambda item: item[1].timestamp)
    return f"rank {rank} ended with {_ending(failure.exitcode)}"


def _ending(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _be_quiet() -> None:
    """The agent's log is for its developers; Torso says itself what matters."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
