"""What a process holds besides its tensors: real runs of a small model, less what is predicted of them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torso.cli.bench import Bench, look
from torso.cli.compare import chosen_strategies
from torso.cli.planning import lengths_of, setting_of
from torso.config import RunConfig
from torso.errors import RequestError
from torso.planner.hardware import CPU, LINKS
from torso.planner.memory import memory
from torso.records import StepRecord
from torso.report.comparison.read import TRIALS, read_comparison
from torso.report.comparison.trials import Result
from torso.report.log import read_records

STEPS, SEQUENCES = 8, 2
"""Steps, and sequences of a micro-batch. What malloc keeps grows for some steps."""


def probe(processes: int, full: bool, several: bool, import_bytes: float) -> dict[str, float]:
    """Bytes above the imports, by strategy, or by a split's party; nothing of strategies that cannot be tried.

    With one micro-batch a rank in each step, or `several`.
    """
    adapter: dict[str, Any] = {"adapter": "none"} if full else {}
    batch = SEQUENCES * processes * (2 if several else 1)
    sizes: dict[str, Any] = {"global_batch_size": batch, "micro_batch_size": SEQUENCES, "max_examples": STEPS * batch}
    config = RunConfig(model="mini", evaluate="none", threads=1, **sizes, **adapter)
    strategies = [s for s in chosen_strategies("") if s != ("split" if processes == 1 else "single")]
    bench = Bench(strategies, ["mini"], [processes], None, 0, config)
    with tempfile.TemporaryDirectory(prefix="torso-plan-") as folder:
        path = Path(folder)
        try:
            request = look(bench)
        except RequestError:  # e.g. an adapter is needed
            return {}
        bench.claim(path, request)
        bench.run(path, request)
        done = [result for result in read_comparison(path).results.values() if result.done]
        return {n: b for result in done for n, b in _besides(path, result, config, processes, import_bytes).items()}


def _besides(path: Path, result: Result, config: RunConfig, processes: int, import_bytes: float) -> dict[str, float]:
    """Measured peaks of a trial's parties, less imports and predicted tensors."""
    records = read_records(path / TRIALS / result.trial.name / "metrics.jsonl")[0]
    steps = [record for record in records if isinstance(record, StepRecord)]
    setting = setting_of(config, lengths_of(config), processes, CPU, LINKS["loopback"])
    predicted = memory(setting.at_its_longest, result.trial.strategy)  # type: ignore[arg-type]
    found = {name: max(step.memory_bytes for step in steps) for name in predicted}
    if "worker" in found:
        found["worker"] = max(step.server_memory_bytes for step in steps)
    return {name: max(0.0, peak - import_bytes - predicted[name].step) for name, peak in found.items()}
