"""Ranks on this machine under torch's elastic agent, which runs inside the command's own process.

The agent restarts the whole group when a rank dies. Added here: no banner and no traceback of its own, a rank's own
words and exit code, no restart for what a restart cannot mend, a budget of restarts that refills after progress, one
request to stop that every rank gets once, and threads, rendezvous and proxies set so that they do not depend on chance.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torso.errors import ConfigError, LaunchError
from torso.parallel.rank import OUTCOME, read_outcome

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
GRACE_S = 60
"""Time that ranks have to save and end after a request to stop."""
REFILL_AFTER_S = 300.0
"""Ranks that ran this long without a failure have made progress, where `progress` does not tell."""


def launch(
    module: str,
    arguments: Sequence[str],
    *,
    num_ranks: int,
    threads: int,
    max_restarts: int = 10,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[], Any] | None = None,
    grace_s: int = GRACE_S,
) -> None:
    """Run `python -m module arguments` in `num_ranks` processes until all have ended well; on the main thread only.

    The module should end in `end_rank(…)`. When a rank dies, all are restarted, at most `max_restarts` times in
    a row without `progress()` changing. Raises LaunchError with a rank's own words and exit code, or with
    the reason why restarting was given up; KeyboardInterrupt when a signal asked to stop (all ranks have ended then).
    """
    if num_ranks < 1 or threads < 1:
        raise ConfigError(f"cannot start {num_ranks} ranks of {threads} threads", "Give at least 1 rank and 1 thread.")
    if under_torchrun():
        raise ConfigError("this process is a rank of torchrun's", "Start `torso` itself: it starts its own ranks.")
    from torso.parallel.agent import Agent, worker_spec  # torch is imported only when ranks are started

    with tempfile.TemporaryDirectory(prefix="torso-launch-") as folder:
        outcomes = Path(folder) / "outcomes"
        outcomes.mkdir()
        command = ("-m", module, *arguments)
        with _environment(_variables(threads, outcomes, environment or {})):
            workers = worker_spec(sys.executable, command, num_ranks, max_restarts, uuid.uuid4().hex)
            agent = Agent(workers, folder, outcomes, progress, grace_s, REFILL_AFTER_S)
            stopped = agent.run_to_the_end()
        _raise_failure(agent.failure, outcomes)
    if stopped:
        raise KeyboardInterrupt


def under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank that somebody's `torchrun` started: each of them would start ranks again."""
    return "TORCHELASTIC_RUN_ID" in environment and OUTCOME not in environment


def spare_localhost(environment: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY in both spellings with this machine's own names added: no proxy stands between local parties."""
    given = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    names = [name for name in given.split(",") if name]
    value = ",".join([*names, *(host for host in LOCAL_HOSTS if host not in names)])
    return {"NO_PROXY": value, "no_proxy": value}


def _variables(threads: int, outcomes: Path, extra: Mapping[str, str]) -> dict[str, str]:
    return {
        **spare_localhost(os.environ),
        # Each restart gets a store of its own: in a shared one new ranks read the addresses of dead peers.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        # Without them the number of threads would depend on the number of ranks, and the bits on both.
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TORSO_PARENT": str(os.getpid()),
        OUTCOME: str(outcomes),
        **extra,
    }


@contextmanager
def _environment(ours: Mapping[str, str]) -> Iterator[None]:
    """What the ranks inherit; restored afterwards."""
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _raise_failure(failure: str, outcomes: Path) -> None:
    outcome = read_outcome(outcomes)
    if outcome is not None:
        raise LaunchError(outcome.message, outcome.code)
    if failure:
        raise LaunchError(failure)
