"""`torso verify survive`: a real run whose processes are killed again and again, compared with the undisturbed one."""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from torso.cli import processes
from torso.errors import TorsoError
from torso.records import StepRecord
from torso.training.run_directory import MetricsLog, RunDirectory

VICTIMS = ("worker", "server", "client rank", "client")
"""One body worker, the command that serves, one client rank, the command that trains."""
STEPS_BETWEEN = 4
"""At most this many steps are waited for before the next kill, so that some kills meet a replay or a start."""
PAUSE_S = 1.0
"""And at most this long on top, so that every phase of a step and of a save is met."""
PATIENCE_S = 180.0
SERVER_AWAY, MOST_TRIES = 2, 20
"""The exit code of a command whose server is just being started again, and how often in a row that is borne."""
POLL_S = 0.02


@dataclass
class Ordeal:
    """A split run with two clients and two workers, and its server; both started again when their command is killed."""

    run: Path
    serve_words: list[str]
    train_words: list[str | Path]
    random: random.Random
    killed: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        self.server_log, self.log = (self.run.with_name(f"{self.run.name}.{name}.log") for name in ("server", "client"))
        self._tries = 0
        self._server = self._serve()
        self._client = processes.start(self.log, self.train_words)

    @property
    def epochs(self) -> int:
        """The run's recorded target."""
        return RunDirectory(self.run).state.epochs

    def kill(self) -> None:
        """One process, chosen by chance, at a moment chosen by chance."""
        self._await_steps(processes.logged_steps(self.run) + self.random.randint(0, STEPS_BETWEEN))
        time.sleep(self.random.uniform(0.0, PAUSE_S))
        victim = self.random.choice(VICTIMS)
        command = self._client if victim.startswith("client") else self._server
        targets = [command.pid] if victim in ("server", "client") else _children(command.pid)
        if not targets or not _kill(self.random.choice(targets)):
            return
        self.killed[victim] += 1
        if victim == "server":
            command.wait()
            self._server = self._serve()
        elif victim == "client":
            command.wait()
            self._client = self._resume()

    def finish(self) -> None:
        """Let it come to its end."""
        while not self._has_ended():
            time.sleep(POLL_S)

    def close(self) -> None:
        """End what still runs."""
        for process in (self._client, self._server):
            process.terminate()
            process.wait()

    def _serve(self) -> subprocess.Popen[bytes]:
        size = self.server_log.stat().st_size if self.server_log.exists() else 0
        process = processes.start(self.server_log, self.serve_words)
        processes.await_ready(process, self.server_log, size)
        return process

    def _resume(self, *words: str) -> subprocess.Popen[bytes]:
        if not (self.run / "run.json").exists():  # killed before the run was created
            return processes.start(self.log, self.train_words)
        return processes.start(self.log, ["resume", self.run, *words])

    def _await_steps(self, count: int) -> None:
        """A run that comes to its end before is given another epoch."""
        deadline = time.monotonic() + PATIENCE_S
        while processes.logged_steps(self.run) < count:
            if self._has_ended():
                self._client = self._resume("--epochs", "1")
            if time.monotonic() > deadline:
                text = f"no step in {PATIENCE_S:.0f} s after {self.killed.total()} kills"
                raise TorsoError(text, f"Its last words: {processes.last_words(self.log)}")
            time.sleep(POLL_S)

    def _has_ended(self) -> bool:
        """Whether the run came to its target; one that found its server away is resumed, as a person would."""
        code = self._client.poll()
        if code == SERVER_AWAY and self._tries < MOST_TRIES:
            self._tries += 1
            time.sleep(1.0)
            self._client = self._resume()
        elif code:
            text = f"the run ended with exit code {code} after {self.killed.total()} kills"
            raise TorsoError(text, f"Its last words: {processes.last_words(self.log)}")
        elif code == 0:
            self._tries = 0
        return code == 0


def training_seconds(run: Path) -> float:
    """What the steps of a run's log took by themselves."""
    return sum(record.seconds for record in MetricsLog(run).read() if isinstance(record, StepRecord))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
