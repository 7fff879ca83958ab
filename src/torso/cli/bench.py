"""The trials of a comparison: each strategy in fresh processes, one trial after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from torso.cli import processes
from torso.cli.assembly import Assembly
from torso.cli.training_run import check
from torso.config import RunConfig
from torso.errors import ConfigError, RequestError, RunDirectoryError, TorsoError
from torso.files import make_directory, replace_atomically
from torso.model.names import expected_shapes
from torso.model.weights import WeightSource
from torso.report.comparison.read import REQUEST, TRIALS, read_request, read_result
from torso.report.comparison.trials import DONE, FAILED, NOT_APPLICABLE, Trial, trials
from torso.report.log import flatten
from torso.report.units import duration, size

POLL_S, SAY_EVERY_S = 0.2, 15.0
BY_TRIAL = ("model", "strategy", "nproc", "clients", "server")
"""Settings that a trial has of its own."""


@dataclass(frozen=True)
class Bench:
    """What is compared."""

    strategies: list[str]
    models: list[str]
    world_sizes: list[int]
    workers: int | None
    warm_up_steps: int
    config: RunConfig

    @property
    def trials(self) -> list[Trial]:
        """In the order in which they run."""
        return trials(self.strategies, self.models, self.world_sizes)

    @property
    def threads(self) -> int:
        """One number for every process, so that all compute alike: the cores, shared by the most processes."""
        return self.config.threads or max(1, processes.num_cores() // max(trial.num_processes for trial in self.trials))

    def parties(self, trial: Trial) -> tuple[int, int]:
        """Ranks that train, and body workers of a split: together the number asked for."""
        workers = (self.workers or max(1, trial.num_processes // 2)) if trial.strategy == "split" else 0
        return trial.num_processes - workers, workers

    def settings(self, trial: Trial) -> RunConfig:
        """Of the trial's run; raises a RequestError when the strategy cannot do this."""
        changes: dict[str, Any] = {"model": trial.model, "strategy": trial.strategy, "threads": self.threads}
        ranks, workers = self.parties(trial)
        if ranks < 1:
            text = (
                f"of {trial.num_processes} process{'' if trial.num_processes == 1 else 'es'} {workers} would be workers"
            )
            raise ConfigError(f"{text}, and none a client", "A split needs at least one of each.")
        if trial.strategy == "split":
            changes["clients"] = ranks
        elif trial.strategy != "single":
            changes["nproc"] = ranks
        if trial.strategy != "hsdp":
            changes["shard_size"] = None  # it says nothing of the others
        return dataclasses.replace(self.config, **changes).checked()

    def claim(self, folder: Path, request: dict[str, Any]) -> None:
        """Make the folder this request's; raises RunDirectoryError when it is another's, naming what differs."""
        if (folder / REQUEST).is_file():
            differing = differences(read_request(folder), request)
            if differing:
                raise RunDirectoryError(
                    f"{folder} holds a comparison of something else: {'; '.join(differing)}", "Choose another --out."
                )
            return
        if any(path.name != "lock" for path in folder.iterdir()):
            raise RunDirectoryError(f"{folder} is not empty and holds no comparison", "Choose another --out.")
        replace_atomically(folder / REQUEST, json.dumps(request, indent=1).encode())

    def run(self, folder: Path, request: dict[str, Any]) -> None:
        """All trials that are not done; those that failed are tried again."""
        make_directory(folder / TRIALS)
        steps = {trial: request["steps"][trial.model] for trial in self.trials}
        for number, trial in enumerate(self.trials, start=1):
            if read_result(folder, trial, 0).state == DONE:
                continue
            clock = Clock()
            say(f"{number} of {len(self.trials)}, {trial.name}: starting")
            ended = self._try(folder / TRIALS, trial, steps[trial])
            ended |= clock.read()
            replace_atomically(folder / TRIALS / f"{trial.name}.json", json.dumps(ended, indent=1).encode())
            reason = f": {ended['reason']}" if ended["reason"] else ""
            say(f"{trial.name}: {ended['state']} after {duration(ended['wall_seconds'])}{reason}")

    def _try(self, folder: Path, trial: Trial, steps: int) -> dict[str, Any]:
        ranks, workers = self.parties(trial)
        ended: dict[str, Any] = {"state": DONE, "reason": "", "num_ranks": ranks, "num_workers": workers}
        ended["parties"] = f"{ranks} + {workers}" if workers else str(ranks)
        try:
            config = self.settings(trial)
        except RequestError as error:
            return ended | {"state": NOT_APPLICABLE, "reason": str(error)}
        if trial.strategy == "hsdp":
            in_a_copy = config.strategy_config.ranks_in_a_copy(ranks)
            ended |= {"parties": f"{ranks // in_a_copy} x {in_a_copy}", "num_copies": ranks // in_a_copy}
        try:
            _train(folder, trial, config, workers, steps)
        except TorsoError as error:
            return ended | {"state": FAILED, "reason": str(error)}
        return ended


class Clock:
    """The time of a trial, and what other programs computed meanwhile, since it was made."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._started, self._busy, self._own = now, now(), _busy_seconds(), _own_seconds()

    def read(self) -> dict[str, float]:
        """Seconds of the wall clock, and the mean number of cores that others used."""
        seconds = self._now() - self._started
        others = _busy_seconds() - self._busy - (_own_seconds() - self._own)
        return {"wall_seconds": seconds, "others_cores": max(0.0, others / max(seconds, 1e-9))}


def _busy_seconds() -> float:
    """Of all cores since the system started; what the host of a virtual machine took away is in it."""
    times = psutil.cpu_times()._asdict()
    return sum(float(times.get(name, 0.0)) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_seconds() -> float:
    """Of this process and of those it started that have ended."""
    return sum(os.times()[:4])


def _train(folder: Path, trial: Trial, config: RunConfig, workers: int, steps: int) -> None:
    """In fresh processes, from the start: what an interrupted trial left goes, so that its time is all of its time."""
    run, log, settings = (folder / f"{trial.name}{ending}" for ending in ("", ".log", ".toml"))
    shutil.rmtree(run, ignore_errors=True)
    log.unlink(missing_ok=True)
    with _server(folder / f"{trial.name}.server.log", config, workers) as url:
        config = dataclasses.replace(config, server=(url,)) if url else config
        replace_atomically(settings, config.to_toml().encode())
        with processes.background(log, ["train", "--config", settings, "--run-dir", run]) as process:
            code = _await(process, run, steps)
    if code:
        raise TorsoError(f"exit code {code}", f"Its last words: {processes.last_words(log)}")
    if processes.logged_steps(run) != steps:
        raise TorsoError(f"it ended after {processes.logged_steps(run)} of {steps} steps", f"See {log}.")


def _await(process: subprocess.Popen[bytes], run: Path, steps: int) -> int:
    """The exit code; now and then says how far it is and how long it will take."""
    started = said = time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        if now - said >= SAY_EVERY_S:
            said, done = now, processes.logged_steps(run)
            left = f", {duration((now - started) / done * (steps - done))} left of it" if done else ""
            say(f"{run.name}: step {done} of {steps}{left}")
    return process.returncode


@contextlib.contextmanager
def _server(log: Path, config: RunConfig, workers: int) -> Iterator[str]:
    """The split's own; no URL for the other strategies."""
    if not workers:
        yield ""
        return
    log.unlink(missing_ok=True)
    cuts = Assembly(config).cuts
    words = ["--init", config.init, "--base-seed", str(config.base_seed), "--threads", str(config.threads)]
    words += ["--layers", f"{cuts.head_cut}:{cuts.tail_cut}"]
    words += ["--device", *worker_devices(config.device, config.clients, workers, torch.cuda.device_count())]
    with processes.server(log, config.model, workers, *words) as url:
        yield url


def worker_devices(names: Sequence[str], num_clients: int, num_workers: int, num_gpus: int) -> list[str]:
    """Those after the client ranks', in turn: body and ends share a GPU only when there are too few."""
    if tuple(names) == ("auto",):
        names = [f"cuda:{index}" for index in range(num_gpus)] or ["cpu"]
    return [names[(num_clients + worker) % len(names)] for worker in range(num_workers)]


def look(bench: Bench) -> dict[str, Any]:
    """Check what trials have in common before any starts; gives the request as it is kept. Raises a RequestError."""
    single: dict[str, Any] = {"strategy": "single", "threads": bench.threads, "clients": 1}
    config = dataclasses.replace(bench.config, **single).checked()
    parameters, steps, data, weights = {}, {}, {}, {}
    for model in bench.models:
        assembly = Assembly(dataclasses.replace(config, model=model))
        check(assembly)
        parameters[model] = sum(math.prod(shape) for shape in expected_shapes(assembly.source.config).values())
        steps[model] = config.epochs * assembly.plan.steps_per_epoch
        data[model] = assembly.plan.fingerprint
        if steps[model] <= bench.warm_up_steps:
            text = f"warm_up_steps is {bench.warm_up_steps}, and {model} trains for {steps[model]} steps in all"
            raise ConfigError(text, "Nothing would be timed: give a smaller number, or more examples or epochs.")
        weights[model] = _fingerprint(assembly.source)
    settings = {n: v for n, v in dataclasses.asdict(config).items() if n not in BY_TRIAL and v is not None}
    return {
        "strategies": bench.strategies,
        "models": parameters,
        "world_sizes": bench.world_sizes,
        "workers": bench.workers or "half",
        "warm_up_steps": bench.warm_up_steps,
        "settings": json.loads(json.dumps(settings | {"dtype": assembly.dtype})),
        "steps": steps,
        "micro_batches": data,
        "weights": weights,
        "on_gpu": assembly.device.type == "cuda",
        "machine": machine(assembly.devices, bench.threads),
    }


def _fingerprint(source: WeightSource) -> str:
    """Of all base weights."""
    return source.fingerprint(None)[:32] + source.fingerprint(range(source.config.n_layer))[:32]


def machine(devices: list[torch.device], threads: int) -> dict[str, str]:
    """What the figures depend on beside the request."""
    names = [torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu" for device in devices]
    return {
        "CPU": cpu_name(),
        "cores": str(processes.num_cores()),
        "RAM": size(psutil.virtual_memory().total),
        "devices": ", ".join(dict.fromkeys(names)),
        "torch": torch.__version__,
        "threads": str(threads),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
    }


def cpu_name() -> str:
    """As the system calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Each part of two requests that differs, with both values."""
    before, now = flatten(old), flatten(new)
    return [
        f"{name} was {before.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


def say(text: str) -> None:
    """How it goes."""
    print(f"compare: {text}", file=sys.stderr, flush=True)
