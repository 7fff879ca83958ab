"""What every rank does first and last: die with its parent, notice a request to stop, say how it ended.

A rank that fails writes why into the launcher's outcome folder, unless starting again can help: then it only ends, and
the agent restarts the group. Nothing here imports torch, so that the first lines of a rank run at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from torso.errors import GroupError, Interrupted, PeerError, StorageError, TorsoError
from torso.parallel.lifetime import die_with_parent

OUTCOME = "TORSO_OUTCOME"
"""Environment variable: the folder into which ranks write why they will not be started again."""
RESTARTABLE = (GroupError, OSError, MemoryError, RuntimeError)
"""Failures of machines and peers rather than of the request."""


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """How a rank ended, for good."""

    rank: int
    code: int
    message: str
    secondary: bool = False
    """It only followed another rank that gave up."""


class StopRequest:
    """True, when called, once somebody asked this process to stop (SIGTERM or SIGINT); asking twice ends it at once."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def __call__(self) -> bool:
        return self._asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


def end_rank(work: Callable[[StopRequest], None]) -> NoReturn:
    """`run_rank`, then the end of the process, without waiting for threads that wait for others."""
    code = run_rank(work)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_rank(work: Callable[[StopRequest], None], environment: Mapping[str, str] = os.environ) -> int:
    """Do a rank's work; returns its exit code.

    `work` should import what is heavy itself, so that a request to stop is noticed while it does.
    """
    die_with_parent()
    stop = StopRequest()
    try:
        work(stop)
    except (Interrupted, KeyboardInterrupt):
        return 0 if stop() else 1
    except TorsoError as error:
        _tell(environment, error)
        return error.exit_code or 1
    except Exception as error:
        if isinstance(error, OSError) and StorageError.is_full(error):
            _tell(environment, StorageError.of(error))
            return 1
        if stop():
            return 1
        traceback.print_exc()
        if not isinstance(error, RESTARTABLE):
            _write(environment, 1, f"internal error: {type(error).__name__}: {error}. Please report the lines above.")
        return 1
    return 0


def _tell(environment: Mapping[str, str], error: TorsoError) -> None:
    """Why this rank ends: to everybody when it is for good, else as a line of this rank."""
    if isinstance(error, RESTARTABLE) and OUTCOME in environment:
        print(f"torso: rank {environment.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
    else:
        _write(environment, error.exit_code, str(error), isinstance(error, PeerError))


def _write(environment: Mapping[str, str], code: int, message: str, secondary: bool = False) -> None:
    """Atomically: the launcher reads whole files only. Without a launcher the message goes to stderr."""
    if OUTCOME not in environment:
        print(f"torso: error: {message}", file=sys.stderr, flush=True)
        return
    rank = int(environment.get("RANK", "0"))
    path = Path(environment[OUTCOME]) / f"rank-{rank}.json"
    outcome = RankOutcome(rank=rank, code=code, message=message, secondary=secondary)
    temporary = path.with_suffix(".part")
    try:
        temporary.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        # the launcher's folder is full too; an empty file still fits, and says that starting again cannot help
        with contextlib.suppress(OSError):
            path.touch()
            print(f"torso: rank {rank}: {message}", file=sys.stderr, flush=True)


def read_outcome(folder: Path) -> RankOutcome | None:
    """What ended the group: the first rank's own failure, else a follower's; None when no rank wrote any."""
    found = [_read(path) for path in folder.glob("rank-*.json")]
    return min(found, key=lambda outcome: (outcome.secondary, outcome.rank), default=None)


def _read(path: Path) -> RankOutcome:
    text = path.read_text(encoding="utf-8")
    if not text:
        return RankOutcome(rank=int(path.stem[5:]), code=1, message="training ended for the reason that stands above")
    return RankOutcome(**json.loads(text))
