"""The planner against measurements: `python benchmarks/planner.py --out DIR [--only NAME …] [--steps 8]`.

For each configuration of planner_configurations.toml: `torso compare` with every strategy, then `torso plan --against`
with a calibration made right after it. Prints predicted and measured memory and step times with their errors, the
strategy that was recommended beside the truly fastest that fits, and what a planner that always says "single" would
have scored. Interrupted, the same command goes on. GPT-2 small's size has random weights; texts are all of one length.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torso.cli.processes import command
from torso.model.hub import tokenizer_folder

CONFIGURATIONS = Path(__file__).with_name("planner_configurations.toml")
NOISE = 0.03
"""A recommendation that costs no more than this over the fastest counts as right in the second count."""
MEMORY_GOAL, TIME_GOAL = 0.10, 0.20


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One entry of the file."""

    name: str
    model: str
    adapter: str
    tokens: int
    global_batch_size: int
    micro_batch_size: int
    nproc: int
    memory_limit: str = "1000GB"


def main() -> None:
    """Measure what is not measured yet, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--judge-only", action="store_true", help="with the calibrations made before")
    options = parser.parse_args()
    configurations = [Configuration(**c) for c in tomllib.loads(CONFIGURATIONS.read_text())["configuration"]]
    judged = []
    for one in configurations:
        if options.only and one.name not in options.only:
            continue
        folder = options.out / one.name
        measure(one, folder, options.steps)
        judged.append((one, judge(one, folder, options.judge_only)))
        print(table(*judged[-1]), flush=True)
    print(summary(judged))
    print(f"load {os.getloadavg()[0]:.1f}")


def measure(one: Configuration, folder: Path, steps: int) -> None:
    """All strategies, in fresh processes, one thread each."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    num = steps * one.global_batch_size
    # a beginning and an end token come besides
    lines = json.dumps({"text": " the" * (one.tokens - 2)}) + "\n"
    (data / "train.jsonl").write_text(lines * num, encoding="utf-8")
    words = ["--model", one.model, "--init", "pretrained" if one.model == "mini" else "random"]
    words += ["--tokenizer", str(tokenizer_folder("mini")), "--data", f"jsonl:{data}", "--adapter", one.adapter]
    words += ["--global-batch-size", str(one.global_batch_size), "--micro-batch-size", str(one.micro_batch_size)]
    words += ["--nproc", str(one.nproc), "--threads", "1", "--warm-up-steps", "2", "--out", str(folder / "compare")]
    # a strategy that fails stands as failed, and is judged as one that cannot be taken
    subprocess.run(command("compare", *words), check=False, stdout=subprocess.DEVNULL)


def judge(one: Configuration, folder: Path, judge_only: bool) -> dict[str, Any]:
    """Predictions beside the measurements."""
    words = ["--against", str(folder / "compare"), "--calibration", str(folder / "calibration.json")]
    words += ["--device-memory", one.memory_limit, "--json"] + ([] if judge_only else ["--calibrate"])
    done = subprocess.run(command("plan", *words), check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)[0]
    return found


def table(one: Configuration, found: dict[str, Any]) -> str:
    """One configuration."""
    lines = [f"\n{one.name}: {one.nproc} processes, limit {one.memory_limit}"]
    for name, row in found["strategies"].items():
        sizes = (row[key] / 1e6 for key in ("memory_bytes", "measured_memory_bytes"))
        memory = "{:7.0f} MB of {:7.0f}".format(*sizes) + f" {row['memory_error']:+7.1%}"
        seconds = f"{row['step_seconds']:8.3f} s of {row['measured_step_seconds']:8.3f} {row['time_error']:+7.1%}"
        fits = "fits" if row["measured_fits"] else "too large"
        lines.append(f"  {name:7s} {memory}   {seconds}   {fits}")
    lines.append(f"  recommended {found['recommended']}, fastest that fits {found['fastest']}")
    return "\n".join(lines)


def summary(judged: Sequence[tuple[Configuration, dict[str, Any]]]) -> str:
    """Scores over all configurations."""
    rows = [row for _, found in judged for row in found["strategies"].values()]
    lines = [""]
    for key, goal in (("memory_error", MEMORY_GOAL), ("time_error", TIME_GOAL)):
        errors = [abs(row[key]) for row in rows]
        within = sum(error <= goal for error in errors)
        text = f"median {statistics.median(errors):.1%}, largest {max(errors):.1%}"
        lines.append(f"{key.replace('_', ' ')}: {within} of {len(errors)} within {goal:.0%}, {text}")
    for name in ("planner", "always single"):
        choices = [(found, found["recommended"] if name == "planner" else "single") for _, found in judged]
        right = sum(choice == found["fastest"] for found, choice in choices)
        near = sum(costs(found, choice) <= NOISE for found, choice in choices)
        lines.append(f"{name}: {right} of {len(judged)} right, {near} within {NOISE:.0%} of the fastest")
    return "\n".join(lines)


def costs(found: dict[str, Any], choice: str | None) -> float:
    """How much longer a step takes than with the fastest that fits, relative; infinite where it does not fit."""
    fitting = {n: r["measured_step_seconds"] for n, r in found["strategies"].items() if r["measured_fits"]}
    if choice not in fitting:
        return 0.0 if choice == found["fastest"] else float("inf")
    return float(fitting[choice] / min(fitting.values()) - 1.0)


if __name__ == "__main__":
    main()
