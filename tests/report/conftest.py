"""Makes run directories as training and evaluation leave them.

The fixtures hand out functions, so that no test imports another test's module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torso.records import EpochRecord, EvaluationRecord, StepRecord, to_line

CONFIG = """\
[model]
model = "mini"
init = "pretrained"

[data]
data = "demo"

[adapter]
kind = "dora"
lora_rank = 16
targets = ["attn.c_attn", "mlp.c_fc"]

[training]
seed = 1
max_grad_norm = 1.0

[split]
strategy = "split"
clients = 2
"""
ARITHMETIC = {"torch": "2.13.0", "device": "cpu", "cpu_capability": "AVX512", "threads": "1", "dtype": "fp32"}
_MRS = [f"name[Inn {n}], eatType[pub], near[River {n}]" for n in range(12)]


def _step(number: int, epoch: int = 1, **changes: float) -> StepRecord:
    """A step of a run whose loss falls."""
    noise = 0.15 * math.sin(number * 7.3) + 0.1 * math.sin(number * 2.1)
    fields = {
        "step": number,
        "epoch": epoch,
        "loss": 0.4 + 3.2 * math.exp(-number / 40.0) + noise * math.exp(-number / 150.0),
        "target_tokens": 400 + number % 7,
        "real_tokens": 900 + number % 11,
        "padded_tokens": 960,
        "tokens_per_second": 5200.0 + 400.0 * noise,
        "grad_norm": 0.5 + 2.0 * math.exp(-number / 30.0) + abs(noise),
        "clip_factor": 1.0,
        "learning_rate": 1e-3,
        "skipped": False,
        "seconds": 0.18,
        "memory_bytes": 410_000_000 + 90_000 * min(number, 60),
        "server_memory_bytes": 350_000_000 + 70_000 * min(number, 90),
        "bytes_sent": 1_474_560,
        "bytes_received": 1_475_010,
    }
    return StepRecord(**(fields | changes))  # type: ignore[arg-type]


def _epoch(number: int, last_step: int) -> EpochRecord:
    """An epoch's line."""
    return EpochRecord(
        epoch=number,
        step=last_step,
        loss=1.6 / number,
        grad_norm_mean=0.9 / number,
        grad_norm_max=2.6 / number,
        target_tokens=48_360,
        real_tokens=108_600,
        padded_tokens=115_200,
        seconds=21.6,
        tokens_per_second=5028.0 + 90 * number,
        memory_bytes=415_000_000,
        server_memory_bytes=356_000_000,
        bytes_sent=176_947_200,
        bytes_received=177_001_200,
    )


def _make_run(path: Path, num_steps: int = 240, num_epochs: int = 2, *, server: bool = True) -> Path:
    """A finished run of `num_epochs` with both evaluations."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(CONFIG)
    (path / "run.json").write_text(json.dumps({"job": "ab" * 16, "generation": 2, "epochs": num_epochs}))
    checkpoint = path / "checkpoints" / f"step-{num_steps:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "info.json").write_text(json.dumps({"step": num_steps, "arithmetic": ARITHMETIC}))
    lines = []
    per_epoch = max(1, num_steps // num_epochs) if num_epochs else num_steps + 1
    off = {} if server else {"server_memory_bytes": 0, "bytes_sent": 0, "bytes_received": 0}
    for number in range(1, num_steps + 1):
        lines.append(to_line(_step(number, (number - 1) // per_epoch + 1, **off)))
        if number % per_epoch == 0:
            lines.append(to_line(_epoch(number // per_epoch, number)))
    (path / "metrics.jsonl").write_text("".join(lines))
    _add_evaluation(path, "test-base", 0, adapted=False, perplexity=48.2, bleu=0.031)
    _add_evaluation(path, "test", num_steps, adapted=True, perplexity=1.52, bleu=0.914)
    return path


def _add_evaluation(
    path: Path,
    name: str,
    at: int,
    *,
    adapted: bool,
    perplexity: float,
    bleu: float,
    texts: Mapping[str, str] | None = None,
) -> None:
    """`evaluation/<name>/` with scores and outputs."""
    folder = path / "evaluation" / name
    folder.mkdir(parents=True)
    scores = {"hf_bleu": bleu, "official_bleu": bleu + 0.004, "hf_meteor": bleu / 2 + 0.46}
    record = EvaluationRecord(step=at, subset="test", adapted=adapted, perplexity=perplexity, scores=scores)
    (folder / "scores.json").write_text(to_line(record))
    outputs = [_output(mr, adapted, texts or {}) for mr in _MRS]
    (folder / "outputs.jsonl").write_text("".join(json.dumps(o) + "\n" for o in outputs))


def _output(mr: str, adapted: bool, texts: Mapping[str, str]) -> dict[str, object]:
    name, river = mr[5 : mr.index("]")], mr[mr.rindex("[") + 1 : -1]
    good = f"{name} is a pub near {river}, where families are welcome and the food is not expensive at all."
    references = [
        f"There is a pub called {name} near {river}.",
        f"Near {river} you find {name}, a family pub.",
    ]
    return {
        "mr": mr,
        "output": texts.get(mr, good if adapted else "the the the of"),
        "references": references,
    }


@pytest.fixture
def step() -> Callable[..., StepRecord]:
    """Makes one step's record."""
    return _step


@pytest.fixture
def epoch() -> Callable[..., EpochRecord]:
    """Makes one epoch's record."""
    return _epoch


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """Makes a run directory."""
    return _make_run


@pytest.fixture
def add_evaluation() -> Callable[..., None]:
    """Adds an evaluation to a run directory."""
    return _add_evaluation


@pytest.fixture
def mrs() -> list[str]:
    """The meaning representations that are evaluated."""
    return list(_MRS)
