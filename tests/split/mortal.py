"""Workers and client ranks that a planned fault can kill, though all are threads of one process.

A killed worker takes its group with it, as under the agent: connections break, jobs are gone, and a new group
answers at the same ports. A killed client rank ends with `Killed`, tells nobody, and its group is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
import uvicorn
from tests.split.harness import Quiet, Recipe, Servers, _in_threads

from torso import faults
from torso.errors import GroupError
from torso.parallel.group import Group
from torso.split.client.remote_body import RemoteBody
from torso.split.server.app import create_app
from torso.split.server.leader import Leader, Member
from torso.split.server.members import HttpMember
from torso.split.server.worker import Worker
from torso.training.run_directory import RunDirectory

GROUP_TIMEOUT_S = 3.0
NOTICED_AFTER_S = 0.3
"""What torch's agent takes to see that a rank has died, about."""


class Killed(BaseException):
    """Stands for SIGKILL: no handler of Torso's catches it."""


class _Port:
    """What listens at one port, whichever life of the worker answers there."""

    def __init__(self, port: int) -> None:
        self.app: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(self._answer, port=port, log_level="critical", lifespan="off", interface="asgi3")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def start(self) -> None:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)

    def die(self) -> None:
        """Answer no more, and break all connections."""
        old, self.app = self.app, None
        if old is not None:
            old.state.torso.close()
        self._cut()

    def _cut(self) -> None:
        if self._loop is not None:
            for connection in list(self.server.server_state.connections):
                self._loop.call_soon_threadsafe(connection.transport.abort)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self._loop = asyncio.get_running_loop()
        if self.app is None:
            self._cut()
            raise ConnectionError("nobody listens")
        await self.app(scope, receive, send)


class MortalServers(Servers):
    """Servers whose group can be killed; `lives` counts them."""

    def __enter__(self) -> MortalServers:
        self.lives = 0
        self._agent = threading.Thread()
        self._change = threading.Lock()
        first = self.settings.port
        self._ports = [_Port(port) for port in range(first, first + self.settings.workers)]
        self._start_life()
        for port in self._ports:
            port.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._agent.ident is not None:
            self._agent.join()
        for port in self._ports:
            port.server.should_exit = True
            port.thread.join(10)
            port.app.state.torso.close()

    def kill(self, rank: int, life: int | None = None) -> None:
        """This worker is gone at once, its group a moment later; the caller dies with it."""
        with self._change:
            if life in (None, self.lives) and not self._agent.is_alive():
                self._ports[rank].die()
                self._agent = threading.Thread(target=self._restart)
                self._agent.start()
        raise Killed

    def _restart(self) -> None:
        """What the agent does, after the time that it takes to notice: the others still answer until then."""
        time.sleep(NOTICED_AFTER_S)
        for port in self._ports:
            port.die()
        self._start_life()

    def _start_life(self) -> None:
        self.lives += 1
        store, count, life = dist.HashStore(), self.settings.workers, self.lives

        def make(rank: int) -> Worker:
            group = Group.local(store, rank, count, GROUP_TIMEOUT_S) if count > 1 else Group.solo()
            return Worker(self.settings, group, on_broken_group=lambda: self.kill(rank, life))

        self.workers = _in_threads(count, make)
        for rank, (port, worker) in enumerate(zip(self._ports, self.workers, strict=True)):
            port.app = create_app(worker, self._leader(worker) if rank == 0 else None)

    def _leader(self, worker: Worker) -> Leader:
        members: list[Member] = [worker]
        ports = range(self.settings.port + 1, self.settings.port + self.settings.workers)
        members += [HttpMember(f"http://127.0.0.1:{port}", "s", 10.0) for port in ports]
        return Leader(worker, members)


class MortalRecipe(Recipe):
    """A run whose ranks may be killed; its group is then started again, as the agent or `torso resume` would."""

    def train_through(self, last_step: int, listener: Quiet | None = None) -> None:
        """Train up to a step, over any number of planned kills."""
        for _ in range(10):
            try:
                return self._train_once(last_step, listener or Quiet())
            except (Killed, GroupError, faults.InjectedFault):
                continue
        raise AssertionError("the ranks were started 10 times")

    def _train_once(self, last_step: int, listener: Quiet) -> None:
        if not (self.folder / "run.json").exists():
            RunDirectory.create(self.folder, "", 1)
        run, store = RunDirectory(self.folder), dist.HashStore()

        def work(rank: int) -> None:
            group = Group.local(store, rank, self.clients, GROUP_TIMEOUT_S) if self.clients > 1 else Group.solo()
            learner = self.learner(run, group)
            try:
                self.trainer(run, group, learner, listener, lambda: False).run(last_step)
            except BaseException:
                _vanish(group, learner)
                raise
            learner.close()

        _in_threads(self.clients, work)


def _vanish(group: Group, learner: Any) -> None:
    """What is left of a killed rank: broken connections, to its peers too, and no farewell."""
    group._process_group = None
    middle = getattr(learner, "_middle", None)
    if isinstance(middle, RemoteBody):
        middle._pool.shutdown(wait=False, cancel_futures=True)
        middle._transport.close()


@contextlib.contextmanager
def planned(folder: Path, lines: Sequence[str], servers: MortalServers | None = None) -> Iterator[Path]:
    """Faults armed for this process; all of them must have happened at the end."""

    def kill(party: str) -> None:
        if servers is not None and party.startswith("worker"):
            servers.kill(int(party.removeprefix("worker-")))
        raise Killed

    faults.write_plan(folder, lines)
    faults.arm(faults.Faults(folder, kill))
    try:
        yield folder
    finally:
        faults.arm(None)
    assert faults.hits(folder) == list(range(1, len(lines) + 1)), lines
