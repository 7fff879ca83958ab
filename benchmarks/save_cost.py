"""What a checkpoint costs, against a step: `python benchmarks/save_cost.py [--steps 6] [--strategy split]`.

A real run of GPT-2 small's size (random weights, LoRA of rank 8 on all linear layers, demo data) that saves after
every step, with its body on a server of its own process. Prints medians: a step, the fetch of the body's state, the
save itself (write, sync, verify, remove the oldest), the rest (the copy of head and tail, the choice of the best), the
whole stall, and what it adds to each step at the default interval.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torso.cli.client_rank import train
from torso.cli.processes import server
from torso.config import RunConfig
from torso.model.hub import tokenizer_folder
from torso.records import StepRecord
from torso.split.client.remote_body import RemoteBody
from torso.training import checkpoint as checkpoints
from torso.training.loop import Trainer
from torso.training.run_directory import MetricsLog, RunDirectory
from torso.training.whole import WholeModel

SETTINGS: dict[str, Any] = {
    "model": "gpt2",
    "init": "random",
    "tokenizer": str(tokenizer_folder("mini")),
    "lora_rank": 8,
    "checkpoint_every_steps": 1,
    "evaluate": "none",
    "threads": 1,
}
SPENT: dict[str, list[float]] = defaultdict(list)


def main() -> None:
    """Train, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--strategy", choices=["single", "split"], default="split")
    options = parser.parse_args()
    for owner, name in ((Trainer, "_save"), (RemoteBody, "state"), (WholeModel, "state"), (checkpoints, "save")):
        setattr(owner, name, timed(getattr(owner, name), name))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run = train_in(Path(folder), options.strategy, options.steps)
        describe(run)


def timed(work: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`work`, with its time noted."""

    @functools.wraps(work)
    def measured(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        result = work(*arguments, **options)
        SPENT[name].append(time.perf_counter() - started)
        return result

    return measured


def train_in(folder: Path, strategy: str, steps: int) -> RunDirectory:
    """One epoch of `steps` steps."""
    serving = server(folder / "server.log", "gpt2", 1, "--init", "random")
    with serving if strategy == "split" else nullcontext("http://127.0.0.1:9") as url:
        config = RunConfig(**SETTINGS, strategy=strategy, server=(url,), max_examples=16 * steps).checked()
        run = RunDirectory.create(folder / "run", config.to_toml(), 1)
        with run.lock():
            train(run, config, 1)
    return run


def describe(run: RunDirectory) -> None:
    """Medians; the first step and the first save, which warm up, are left out."""
    step = statistics.median(
        [r.seconds for r in MetricsLog(run.path).read(StepRecord) if isinstance(r, StepRecord)][1:]
    )
    stall, fetch, save = (statistics.median(SPENT[name][1:]) for name in ("_save", "state", "save"))
    newest = run.checkpoints / f"step-{checkpoints.steps(run.checkpoints)[-1]:08d}"
    every = RunConfig().checkpoint_every_steps
    size = sum(file.stat().st_size for file in newest.iterdir())
    print(f"checkpoint {size / 1e6:.1f} MB, {len(SPENT['save'])} saves, load {os.getloadavg()[0]:.1f}")
    print(f"step {step * 1e3:.0f} ms; state fetch {fetch * 1e3:.0f} ms; save {save * 1e3:.0f} ms")
    rest = (stall - fetch - save) * 1e3
    print(f"stall of a save {stall * 1e3:.0f} ms = {stall / step:.1%} of a step; {rest:.0f} ms of it the rest")
    print(f"at one save every {every} steps: {stall / every * 1e3:.2f} ms a step = {stall / every / step:.3%}")


if __name__ == "__main__":
    main()
