"""Makes the directories of comparisons as `torso compare` leaves them, from records that nobody measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from torso.records import EvaluationRecord, SaveRecord, StepRecord, to_line
from torso.report.comparison.trials import trials

ALL = ("single", "ddp", "fsdp", "hsdp", "split")
PACE = {"single": 1.0, "ddp": 0.6, "fsdp": 0.8, "hsdp": 0.9, "split": 1.4}
MEMORY = {"single": 900, "ddp": 1000, "fsdp": 600, "hsdp": 640, "split": 500}
STEPS_PER_EPOCH = 4


def _steps(strategy: str, num_epochs: int, size: int, shift: float) -> list[StepRecord]:
    """Losses fall alike; a step takes PACE seconds, and the first one ten times as long."""
    return [
        StepRecord(
            step=number,
            epoch=(number - 1) // STEPS_PER_EPOCH + 1,
            loss=(5.0 - 0.1 * number) * (1.0 + shift),
            target_tokens=100,
            real_tokens=80 + 10 * (number % 2),
            padded_tokens=100,
            tokens_per_second=0.0,
            grad_norm=2.0 + number % 3,
            clip_factor=1.0,
            learning_rate=1e-3,
            skipped=False,
            seconds=PACE[strategy] * (10.0 if number == 1 else 1.0),
            memory_bytes=MEMORY[strategy] * 1_000_000,
            server_memory_bytes=400_000_000 if strategy == "split" else 0,
            bytes_sent=2_000_000 if strategy != "single" else 0,
            bytes_received=3_000_000 if strategy != "single" else 0,
        )
        for number in range(1, num_epochs * STEPS_PER_EPOCH + 1)
    ]


def _make(
    path: Path,
    strategies: Sequence[str] = ALL,
    *,
    models: Sequence[str] = ("mini",),
    sizes: Sequence[int] = (2,),
    num_epochs: int = 2,
    shifts: dict[str, float] | None = None,
    states: dict[str, str] | None = None,
    **request: object,
) -> Path:
    """A comparison; `shifts` moves a strategy's losses, `states` says which did not end well."""
    (path / "trials").mkdir(parents=True)
    document = {
        "strategies": list(strategies),
        "models": {model: 3_550_000 * (n + 1) for n, model in enumerate(models)},
        "world_sizes": list(sizes),
        "warm_up_steps": 1,
        "on_gpu": False,
        "settings": {"epochs": num_epochs, "data": "demo", "global_batch_size": 16, "micro_batch_size": 4,
                     "dtype": "fp32", "adapter": "lora", "lora_rank": 8, "dropout": 0.0, "adapter_dropout": 0.0},
        "machine": {"CPU": "a CPU", "cores": "2", "RAM": "16 GB", "torch": "2.13.0", "threads": "1"},
    }  # fmt: skip
    (path / "request.json").write_text(json.dumps(document | request))
    for trial in trials(strategies, models, sizes):
        state = (states or {}).get(trial.strategy, "done")
        is_split = trial.strategy == "split"
        ended = {"state": state, "reason": "" if state == "done" else "it has no <adapter>", "wall_seconds": 60.0,
                 "others_cores": 0.02, "num_ranks": 1 if is_split else trial.num_processes,
                 "num_workers": int(is_split),
                 "parties": "1 + 1" if is_split else str(trial.num_processes),
                 "num_copies": trial.num_processes // 2 if trial.strategy == "hsdp" else 0}  # fmt: skip
        (path / "trials" / f"{trial.name}.json").write_text(json.dumps(ended))
        if state == "done":
            _write_log(path / "trials" / trial.name, trial.strategy, num_epochs, trial.num_processes, shifts or {})
    return path


def _write_log(run: Path, strategy: str, num_epochs: int, size: int, shifts: dict[str, float]) -> None:
    run.mkdir()
    steps = _steps(strategy, num_epochs, size, shifts.get(strategy, 0.0))
    saves = [SaveRecord(step=4, seconds=0.5), SaveRecord(step=8, seconds=0.25)]
    evaluation = EvaluationRecord(step=8, subset="dev", adapted=True, perplexity=9.0, scores={}, seconds=3.0)
    (run / "metrics.jsonl").write_text("".join(map(to_line, [*steps, *saves, evaluation])))


@pytest.fixture(scope="session")
def make_comparison() -> Callable[..., Path]:
    """Makes the directory of a comparison."""
    return _make
