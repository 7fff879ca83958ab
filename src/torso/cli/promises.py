"""What `torso verify` does: small runs with real servers and ranks, compared with the undisturbed, unsplit run."""

from __future__ import annotations

import dataclasses
import itertools
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from torso.cli import processes
from torso.cli.comparison import Comparison, compare
from torso.cli.survival import Ordeal, training_seconds
from torso.errors import TorsoError
from torso.parallel.ports import free_ports

KINDS = ("lora", "dora")
GLOBAL_BATCH_SIZE = 8
POLL_S = 0.02
STEP_WITHIN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    promise: str
    compared: str
    equal: bool
    holds: bool
    """Equal bits, or where a tolerance is stated, within it."""
    outcome: str
    seconds: float
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where the small runs of a verification go, and what they train."""

    folder: Path
    model: str
    init: str
    tokenizer: str | None
    data: str
    max_examples: int
    most: int
    """Up to this many clients and workers."""
    kills: int
    """Of survive: how many times something is killed."""
    seed: int
    """Of survive: which processes, and when."""
    largest: int = 4
    """Of strategies: up to this many ranks."""

    @property
    def steps_per_epoch(self) -> int:
        """Of every run here."""
        return -(-self.max_examples // GLOBAL_BATCH_SIZE)

    def settings(self, kind: str) -> list[str]:
        """Dropout everywhere, one thread, and micro-batches small enough that a step has several."""
        model = ["--model", self.model, "--init", self.init, "--data", self.data]
        model += ["--tokenizer", self.tokenizer] if self.tokenizer else []
        adapter = ["--adapter", kind, "--dropout", "0.1"]
        adapter += ["--lora-rank", "4", "--adapter-dropout", "0.1"] if kind != "none" else []
        batches = ["--max-examples", str(self.max_examples), "--global-batch-size", str(GLOBAL_BATCH_SIZE)]
        batches += ["--micro-batch-size", "2", "--learning-rate", "5e-3"]
        return [*model, *adapter, *batches, "--threads", "1", "--evaluate", "none"]

    def train(self, name: str, kind: str, epochs: int, *words: str) -> Path:
        """A run to its end."""
        processes.run(*self.words(name, kind, epochs), *words, log=self.folder / f"{name}.log")
        return self.folder / name

    def words(self, name: str, kind: str, epochs: int) -> list[str]:
        """Of `torso train`."""
        return ["train", *self.settings(kind), "--epochs", str(epochs), "--run-dir", str(self.folder / name)]

    def server(self, name: str, workers: int) -> AbstractContextManager[str]:
        """Workers with the body; gives their URL."""
        return processes.server(self.folder / f"{name}.log", self.model, workers, "--init", self.init)

    def whole(self, kind: str, epochs: int) -> Path:
        """The undisturbed, unsplit run; trained once."""
        path = self.folder / f"whole-{kind}-{epochs}"
        return path if path.exists() else self.train(path.name, kind, epochs)


def split(bench: Bench) -> Iterator[Row]:
    """Any number of clients and workers against the unsplit run."""
    for kind in KINDS:
        bench.whole(kind, 1)
    counts = range(1, bench.most + 1)
    for workers in counts:
        with bench.server(f"server-{workers}", workers) as url:
            for kind, clients in itertools.product(KINDS, counts):
                yield _split_row(bench, kind, clients, workers, url)


def _split_row(bench: Bench, kind: str, clients: int, workers: int, url: str) -> Row:
    started = time.monotonic()
    run = bench.train(f"split-{kind}-{clients}-{workers}", kind, 1, *remote(url, clients))
    what = f"{kind}, {_count(clients, 'client')}, {_count(workers, 'worker')}, against whole"
    return row("split", what, compare(bench.whole(kind, 1), run), started)


def resume(bench: Bench) -> Iterator[Row]:
    """One epoch and one more; stops inside an epoch, other numbers of clients and workers after them."""
    for kind in KINDS:
        whole, started = bench.whole(kind, 2), time.monotonic()
        run = bench.train(f"resume-{kind}", kind, 1)
        processes.run("resume", run, "--epochs", "1", log=bench.folder / f"resume-{kind}.log")
        yield row("resume", f"{kind}, 1 + 1 epochs against 2", compare(whole, run), started)
    half = max(1, bench.steps_per_epoch // 2)
    with bench.server("server-two", 2) as two, bench.server("server-one", 1) as one:
        for kind, step in itertools.product(KINDS, sorted({1, half, bench.steps_per_epoch + half})):
            yield _stopped_row(bench, kind, step, two, one)


def _stopped_row(bench: Bench, kind: str, step: int, first: str, then: str) -> Row:
    """Stopped as by Ctrl-C once `step` is done, with two clients and two workers; resumed with one and one."""
    started, name = time.monotonic(), f"stopped-{kind}-{step}"
    run, log = bench.folder / name, bench.folder / f"{name}.log"
    with processes.background(log, [*bench.words(name, kind, 2), *remote(first, 2)]) as process:
        _await_step(run, step, process, log)
        process.send_signal(signal.SIGINT)
        process.wait()
    stopped_at = processes.digest(run)["step"]
    processes.run("resume", run, "--server", then, "--clients", "1", log=log)
    what = f"{kind}, stopped at step {stopped_at}, 2 clients and workers, then 1"
    return row("resume", what, compare(bench.whole(kind, 2), run), started)


def survive(bench: Bench) -> Iterator[Row]:
    """Processes on both sides killed by chance."""
    started, run = time.monotonic(), bench.folder / f"survive-{bench.seed}"
    url, serve = _serve_words(bench)
    words = [*bench.words(run.name, "dora", 1), *remote(url, 2), "--checkpoint-every-steps", "5"]
    ordeal = Ordeal(run, serve, list(words), random.Random(bench.seed))
    try:
        while ordeal.killed.total() < bench.kills:
            ordeal.kill()
        ordeal.finish()
    finally:
        ordeal.close()
    lost = (time.monotonic() - started - training_seconds(run)) / bench.kills
    killed = ", ".join(f"{number} {name}" for name, number in sorted(ordeal.killed.items()))
    what = f"dora, {bench.kills} kills ({killed}), {lost:.1f} s lost a kill"
    found = row("survive", what, compare(bench.whole("dora", ordeal.epochs), run), started)
    yield dataclasses.replace(found, details=found.details | {"seconds_lost_per_kill": round(lost, 2)})


def _serve_words(bench: Bench) -> tuple[str, list[str]]:
    port = free_ports(2)
    return f"http://127.0.0.1:{port}", processes.serve(bench.model, 2, port, "--init", bench.init)


def _await_step(run: Path, step: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STEP_WITHIN_S
    while processes.logged_steps(run) < step:
        if process.poll() is not None or time.monotonic() > deadline:
            raise TorsoError(f"a run did not come to step {step}", f"Its last words: {processes.last_words(log)}")
        time.sleep(POLL_S)


def remote(url: str, clients: int) -> list[str]:
    """Of `torso train` through a server."""
    return ["--strategy", "split", "--server", url, "--clients", str(clients)]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def row(promise: str, what: str, comparison: Comparison, started: float, tolerance: float | None = None) -> Row:
    """A line of the table; with a tolerance losses may differ by so much, and the rest by what follows."""
    return Row(
        promise=promise,
        compared=what,
        equal=comparison.equal,
        holds=comparison.equal if tolerance is None else comparison.differences["losses"] <= tolerance,
        outcome=comparison.describe(),
        seconds=round(time.monotonic() - started, 1),
        details=comparison.differences,
    )


PROMISES: dict[str, Callable[[Bench], Iterator[Row]]] = {"split": split, "resume": resume, "survive": survive}
