"""Faults on purpose: places where a test, or `torso verify survive`, makes a party die, stop, wait or fail.

Off unless the environment variable TORSO_FAULTS names a folder; then its file `plan` has one fault a line,

    ACTION PARTY POINT[@STEP]       e.g.  kill worker-1 commit.after@3

Each happens once, also over restarts: a file `hit-N` in the folder says that line N has happened. docs/faults.md lists
actions and points.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torso.errors import ConfigError

VARIABLE = "TORSO_FAULTS"
PLAN = "plan"
AROUND = (".before", ".after")
CLIENT = ["open", "forward", "backward", "prepare", "commit", "state"]
WORKER = ["open", "stage", "activate", "forward", "backward", "check", "prepare", "commit", "state", "delete"]
CHECKPOINT = ["state", "info", "manifest", "renamed", "pruned"]
POINTS = {
    "client": (
        *(phase + moment for phase in CLIENT for moment in AROUND),
        *(f"checkpoint.{moment}" for moment in CHECKPOINT),
        *(f"wave{moment}" for moment in AROUND),
        "update.after",
    ),
    "worker": tuple(phase + moment for phase in WORKER for moment in AROUND),
}
"""By side: every point, named by the protocol's phase and the moment."""
_LINE = re.compile(
    r"(?P<action>kill|stop|raise|delay:[0-9.]+) +(?P<party>(?P<side>client|worker)-(?:[0-9]+|\*)) +"
    r"(?P<point>[a-z]+\.[a-z]+)(?:@(?P<step>[0-9]+))?"
)


class InjectedFault(RuntimeError):
    """What the action `raise` raises; like any surprise, no error of Torso's own."""


@dataclass(frozen=True)
class Fault:
    """One line of a plan."""

    number: int
    action: str
    party: str
    """client-RANK or worker-RANK; * stands for any rank."""
    point: str
    step: int | None = None
    """Of the request; of the state that is seeded, at open, stage and activate. None: any."""

    @classmethod
    def parse(cls, number: int, line: str) -> Fault:
        """One line; raises ConfigError."""
        match = _LINE.fullmatch(line.strip())
        if match is None or match["point"] not in POINTS[match["side"]]:
            raise ConfigError(f"line {number} of the plan of faults is {line.strip()!r}", "See docs/faults.md.")
        step = int(match["step"]) if match["step"] else None
        return cls(number, match["action"], match["party"], match["point"], step)

    def fits(self, party: str, point: str, step: int | None) -> bool:
        """Whether it is meant to happen here."""
        return self.point == point and self.step in (None, step) and fnmatchcase(party, self.party)


class Faults:
    """A plan, and which of its faults have happened."""

    def __init__(self, folder: Path, on_kill: Callable[[str], None] | None = None) -> None:
        """`on_kill(party)` stands for SIGKILL where parties are threads of one process."""
        self._folder, self._on_kill = folder, on_kill or _kill
        lines = (folder / PLAN).read_text(encoding="utf-8").splitlines()
        self._faults = [Fault.parse(number, line) for number, line in enumerate(lines, 1) if line.strip()]

    def reach(self, party: str, point: str, step: int | None) -> None:
        """What is planned here happens now, unless it has happened."""
        for fault in self._faults:
            if fault.fits(party, point, step) and self._take(fault, party):
                self._act(fault, party)

    def _take(self, fault: Fault, party: str) -> bool:
        """Whether this call is the first; O_EXCL makes it one of all processes."""
        try:
            with open(self._folder / f"hit-{fault.number}", "x", encoding="utf-8") as file:
                file.write(f"{party} process {os.getpid()}\n")
        except FileExistsError:
            return False
        return True

    def _act(self, fault: Fault, party: str) -> None:
        action, _, argument = fault.action.partition(":")
        if action == "kill":
            self._on_kill(party)
        elif action == "stop":
            os.kill(int(os.environ.get("TORSO_PARENT") or os.getpid()), signal.SIGINT)
        elif action == "delay":
            time.sleep(float(argument))
        else:
            raise InjectedFault(f"injected at {party} {fault.point}")


_armed: Faults | None = None


def reach(side: str, rank: int, point: str, step: int | None = None) -> None:
    """A point of the protocol has been reached; nothing happens unless faults are armed."""
    if _armed is not None:
        _armed.reach(f"{side}-{rank}", point, step)


@contextmanager
def around(side: str, rank: int, phase: str, step: int | None = None) -> Iterator[None]:
    """`reach` before and, when the block succeeds, after it."""
    reach(side, rank, f"{phase}.before", step)
    yield
    reach(side, rank, f"{phase}.after", step)


def arm(faults: Faults | None) -> None:
    """Switch faults on or, with None, off, for this process."""
    global _armed
    _armed = faults


def write_plan(folder: Path, lines: Sequence[str]) -> None:
    """A new plan of which nothing has happened."""
    for number, line in enumerate(lines, 1):
        Fault.parse(number, line)
    folder.mkdir(parents=True)
    (folder / PLAN).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def hits(folder: Path) -> list[int]:
    """Numbers (from 1) of the lines that have happened."""
    return sorted(int(path.name.removeprefix("hit-")) for path in folder.glob("hit-*"))


def _kill(party: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get(VARIABLE):
    arm(Faults(Path(os.environ[VARIABLE])))
