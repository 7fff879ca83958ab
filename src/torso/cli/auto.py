"""`--strategy auto`: the planner's choice, made before the run's directory, told, and recorded as what was chosen."""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from typing import Any

from torso.cli.parsing import take_option
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.parallel.strategy_config import DATA_PARALLEL

AUTO = "auto"


def take_auto(words: list[str]) -> bool:
    """Whether `--strategy auto` is among the words; it is taken out of them."""
    name = take_option(words, "--strategy")
    if name not in (None, AUTO):
        words += ["--strategy", str(name)]
    return name == AUTO


def choose(config: RunConfig, has_server: bool) -> RunConfig:
    """The same with the recommended strategy; a split only where the user named a server. Raises ConfigError."""
    import psutil
    import torch

    from torso.cli import planning
    from torso.planner.hardware import CPU
    from torso.planner.recommend import recommend

    if torch.cuda.is_available():
        raise ConfigError("strategy is auto, and GPUs cannot be calibrated yet", "Ask `torso plan --device-kind …`.")
    processes = devices(config)
    setting = planning.setting_of(config, planning.lengths_of(config), processes, CPU, planning.LOOPBACK)
    limit = psutil.virtual_memory().available / processes
    setting = dataclasses.replace(setting, memory_limit=limit)
    found = planning.predictions(setting, planning.known_or_measured(setting))
    allowed = [s for s in _known() if s != "split" or has_server]
    # a single process may have all of the memory
    found["single"] = dataclasses.replace(found["single"], memory_limit=limit * processes)
    advice = recommend({s: p for s, p in found.items() if s in allowed})
    if advice.strategy is None:
        reasons = " ".join(f"{s}: {text}" for s, text in advice.reasons.items())
        raise ConfigError(f"strategy is auto, and none fits: {reasons}", "Lower --micro-batch-size.")
    print(f"strategy: {advice.strategy}. {advice.reasons[advice.strategy]}", file=sys.stderr)
    return dataclasses.replace(config, **_settings(advice.strategy, processes, setting.clients))


def devices(config: RunConfig) -> int:
    """Processes that there may be: --nproc, or, where that is 1, a core each."""
    return config.nproc if config.nproc > 1 else os.cpu_count() or 1


def _known() -> tuple[str, ...]:
    """Strategies that `torso train` has."""
    return typing.get_args(typing.get_type_hints(RunConfig)["strategy"])


def _settings(strategy: str, processes: int, clients: int) -> dict[str, Any]:
    changes: dict[str, Any] = {"strategy": strategy}
    changes["nproc"] = processes if strategy in DATA_PARALLEL else RunConfig().nproc
    return changes | ({"clients": clients} if strategy == "split" else {})
