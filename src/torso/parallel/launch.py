"""Ranks on this machine under torch's elastic agent, which runs inside the command's own process.

What a rank has to say at its end goes through a small file, because the agent knows only "exit code 0" and "restart
everybody": a rank that failed for good writes its outcome and exits with 0, and the command prints it once.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torso.errors import TorsoError

OUTCOME_VARIABLE = "TORSO_OUTCOME"
REFILL_AFTER_S = 60.0
"""Ranks that ran this long before they failed get their restarts back."""


def write_outcome(error: TorsoError) -> None:
    """For a rank: leave word of why it ends, for the command to print. The first word stays."""
    path = os.environ.get(OUTCOME_VARIABLE)
    if path is None:
        return
    content = json.dumps({"code": error.exit_code, "message": str(error)})
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        pass


def launch(
    module: str,
    arguments: Sequence[str],
    *,
    num_ranks: int,
    threads: int,
    max_restarts: int = 10,
    environment: dict[str, str] | None = None,
    progress: Callable[[], Any] = lambda: None,
) -> None:
    """Run `python -m module arguments` in `num_ranks` processes until all have ended well.

    When one fails, all are restarted, at most `max_restarts` times in a row without `progress()` changing.
    Raises TorsoError with a rank's own words, or with the reason why restarting was given up; KeyboardInterrupt
    when a signal asked to stop (the ranks have ended by then).
    """
    with tempfile.TemporaryDirectory(prefix="torso-") as folder, _environment(threads, Path(folder), environment):
        while True:
            before, started = progress(), time.monotonic()
            failure = _run_agent(module, arguments, num_ranks, max_restarts)
            _raise_outcome(Path(folder))
            if failure is None:
                return
            if progress() == before and time.monotonic() - started < REFILL_AFTER_S * max_restarts:
                raise TorsoError(
                    f"ranks failed {max_restarts + 1} times in a row: {failure}", "See their messages above."
                )


def _run_agent(module: str, arguments: Sequence[str], num_ranks: int, max_restarts: int) -> str | None:
    """One run of the agent; the reason when its budget was used up."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _silence_agent()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        # port 0: a fixed one clashes with the neighbour's run
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        start_method="spawn",
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except SignalException:
        raise KeyboardInterrupt from None
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        return f"rank {rank} ended with exit code {first.exitcode}"
    return None


def _silence_agent() -> None:
    """Failures are told in Torso's words, not by the agent's banner."""
    import torch.distributed.elastic  # noqa: F401  the loggers must exist before they are set

    for name in [n for n in logging.root.manager.loggerDict if n.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)


def _raise_outcome(folder: Path) -> None:
    path = folder / "outcome.json"
    if path.exists():
        outcome = json.loads(path.read_text(encoding="utf-8"))
        error = TorsoError(outcome["message"])
        error.exit_code = outcome["code"]
        if outcome["code"] != 0:
            raise error
        raise KeyboardInterrupt


@contextmanager
def _environment(threads: int, folder: Path, extra: dict[str, str] | None) -> Iterator[None]:
    """What the ranks inherit; restored afterwards."""
    ours = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # new ranks would read dead peers' addresses from the agent's store
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORSO_PARENT": str(os.getpid()),
        OUTCOME_VARIABLE: str(folder / "outcome.json"),
    } | (extra or {})
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
