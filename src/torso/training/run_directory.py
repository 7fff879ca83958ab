"""What a run keeps on disk: identity, log, checkpoints, and the lock of its one writer.

config.toml     the resolved settings                       lock            held by the command that runs it
run.json        job id, generation, target epochs           metrics.jsonl   the log
checkpoints/    one directory a checkpoint                  evaluation/     scores and outputs
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torso.errors import RunDirectoryError, StorageError
from torso.files import append, make_directory, replace_atomically, sync_file
from torso.records import Record, parse_line, to_line
from torso.training.lock import LOCK, held_error, holder, locked


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What changes about a run outside its checkpoints."""

    job: str
    """Random identity of the run towards body servers."""
    generation: int = 0
    """Raised before every opening of the job on a server."""
    epochs: int = 1
    """Recorded target."""


class RunDirectory:
    """A run's directory; `create` makes one, the constructor takes an existing one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "run.json").is_file():
            raise RunDirectoryError(f"{path} holds no run", "Give the folder that an earlier `torso train` made.")

    @classmethod
    def create(cls, path: Path, config_toml: str, epochs: int) -> RunDirectory:
        """A new run; raises RunDirectoryError when the directory holds anything already."""
        cls.check_unused(path)
        try:
            make_directory(path)
            # the first of two commands that make the run at once wins
            os.close(os.open(path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            replace_atomically(path / "config.toml", config_toml.encode())
            state = RunState(job=secrets.token_hex(16), epochs=epochs)
            replace_atomically(path / "run.json", json.dumps(asdict(state)).encode())
        except FileExistsError:
            raise RunDirectoryError(f"{path} is being made by another process", "Choose another --run-dir.") from None
        except (OSError, StorageError) as error:
            raise RunDirectoryError(f"{path} cannot be made: {error}", "Choose another --run-dir.") from error
        return cls(path)

    @classmethod
    def elsewhere(cls, path: Path) -> RunDirectory:
        """Rank 0's, maybe on another machine, for a rank that neither reads nor writes it."""
        run = cls.__new__(cls)
        run.path = path
        return run

    @staticmethod
    def check_unused(path: Path) -> None:
        """Raise RunDirectoryError unless a run can be created here."""
        who = holder(path)
        if who is not None:
            raise held_error(path, who)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            what = "already holds a run" if (path / "run.json").exists() else "is not empty"
            raise RunDirectoryError(f"{path} {what}", "Choose another --run-dir, or go on with `torso resume`.")

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def state(self) -> RunState:
        """As it stands on disk now."""
        try:
            return RunState(**json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunDirectoryError(f"{self.path / 'run.json'} cannot be read: {error}", "Restore it.") from error

    def raise_generation(self) -> int:
        """The next generation, durable before it is used."""
        return self._replace(generation=self.state.generation + 1).generation

    def set_epochs(self, epochs: int) -> None:
        """Record another target, durably."""
        self._replace(epochs=epochs)

    def _replace(self, **changes: int) -> RunState:
        state = replace(self.state, **changes)  # type: ignore[arg-type]
        replace_atomically(self.path / "run.json", json.dumps(asdict(state)).encode())
        return state

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the run's one writer; raises RunDirectoryError naming who is. A killed holder does not block.

        What it was just writing goes; a report is written without the lock.
        """
        with locked(self.path):
            for leftover in [*self.path.glob(".*.tmp-*"), *self.path.glob("evaluation/*/.*.tmp-*")]:
                if not leftover.name.startswith(".report"):
                    leftover.unlink(missing_ok=True)
            yield


class MetricsLog:
    """Appends to `metrics.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path / "metrics.jsonl"

    def append(self, record: Record) -> None:
        """One line, handed to the system at once."""
        append(self._path, to_line(record).encode())

    def sync(self) -> None:
        """Make it durable: a checkpoint must not outlive the lines of its steps."""
        sync_file(self._path)

    def read(self, *kinds: type[Record]) -> list[Record]:
        """All whole lines, or those of some kinds; a line cut by a kill is left out."""
        starts = tuple(f'{{"kind": "{kind.kind}"' for kind in kinds)
        records: list[Record] = []
        text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
        for line in text.splitlines():
            try:
                if not kinds or line.startswith(starts):
                    records.append(parse_line(line))
            except ValueError:
                continue
        return records

    def cut_back(self, step: int) -> None:
        """Forget what was logged after `step`: those steps will be done again."""
        kept = [record for record in self.read() if record.step <= step]
        replace_atomically(self._path, "".join(map(to_line, kept)).encode())
