"""What ranks do in the tests of the launcher: `python -m ranks BEHAVIOUR [FOLDER]`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torso.errors import ConfigError, PeerError
from torso.parallel.rank import StopRequest, end_rank

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RESTART = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(*words: object) -> None:
    """One line in one piece: the ranks share the pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def environment(stop: StopRequest) -> None:
    """Print what was set for this rank."""
    say("rank", RANK, WORLD, os.environ["OMP_NUM_THREADS"], os.environ["NO_PROXY"])


def refuse(stop: StopRequest) -> None:
    """Rank 1 finds the request wrong; the other follows."""
    say("started", RANK)
    if RANK == 1:
        raise ConfigError("rank one does not like it", "Ask otherwise.")
    raise PeerError("another rank gave up")


def bug(stop: StopRequest) -> None:
    """A fault in the program itself."""
    say("started", RANK)
    raise KeyError("missing")


def die(stop: StopRequest) -> None:
    """Rank 1 dies each time."""
    say("started", RANK)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def advance(stop: StopRequest) -> None:
    """Rank 0 dies five times, each time after some progress."""
    counter = Path(sys.argv[2]) / "progress"
    done = len(counter.read_text()) if counter.exists() else 0
    if done < 5:
        counter.write_text("x" * (done + 1))
        os.kill(os.getpid(), signal.SIGKILL)


def work(stop: StopRequest) -> None:
    """Until asked to stop; then save for half a second."""
    Path(sys.argv[2], f"pid-{RANK}").write_text(str(os.getpid()))
    say("ready", RANK)
    while not stop():
        time.sleep(0.02)
    time.sleep(0.5)
    say("saved", RANK)


def stubborn(stop: StopRequest) -> None:
    """Does not end when asked to."""
    say("ready", RANK)
    time.sleep(60)
    while True:
        time.sleep(60)


def group(stop: StopRequest) -> None:
    """Forms a gloo group again and again; rank 1 is killed in the first six lives, one after a collective."""
    import torch

    from torso.parallel.group import Group

    torch.set_num_threads(1)
    peers = Group.from_environment(30.0)
    total = sum(int(part) for part in peers.all_gather(torch.tensor([RANK + 1])))
    if RANK == 0:
        say("life", RESTART, "sum", total)
    if RESTART < 6 and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    peers.barrier()
    peers.close()


BEHAVIOURS: dict[str, Callable[[StopRequest], None]] = {
    f.__name__: f for f in (environment, refuse, bug, die, advance, work, stubborn, group)
}

if __name__ == "__main__":
    end_rank(BEHAVIOURS[sys.argv[1]])
