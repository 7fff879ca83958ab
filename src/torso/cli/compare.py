"""`torso compare`: several strategies in turn on the same data, seed, global batch and epochs, side by side."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse_both
from torso.cli.processes import make_out
from torso.cli.train import next_folder
from torso.config import RunConfig
from torso.errors import ConfigError, Interrupted
from torso.records import finite
from torso.report.comparison.trials import FAILED, Comparison


@dataclass(frozen=True, kw_only=True)
class CompareArguments:
    """Train with several strategies in turn and show them side by side.

    Every setting of `torso train` can be given too, and holds for all of them; --evaluate is none unless given.
    """

    strategies: str = ""
    """Which, in this order, e.g. single,split. Default: all that there are."""
    models: str = ""
    """Several models, a comma between them. Default: --model."""
    nproc: str = "2"
    """Numbers of processes, a comma between them; single always has one."""
    workers: int | None = None
    """Of a split's processes, how many are body workers. Default: half of them, at least one."""
    warm_up_steps: int = 2
    """First steps of each run that times and throughput leave out."""
    out: Path | None = None
    """Folder for everything; the same command with the same folder goes on. Default: runs/compare-001 and so on."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Run what is not done yet, write tables, plots and the page; 1 when a trial failed or the losses disagree."""
    options, config = _parse(arguments)
    strategies, models = chosen_strategies(options.strategies), _names(options.models) or [config.model]
    sizes = _sizes(options.nproc)
    if options.warm_up_steps < 0 or (options.workers is not None and options.workers < 1):
        raise ConfigError("warm_up_steps is below 0, or workers below 1", "Give larger numbers.")
    if len({Path(model).name for model in models}) < len(models):
        raise ConfigError(f"two of the models {', '.join(models)} have one name", "Rename a folder, or give it once.")
    from torso.cli.bench import Bench, look
    from torso.report.comparison.write import write_comparison
    from torso.training.lock import locked

    bench = Bench(strategies, models, sizes, options.workers, options.warm_up_steps, config)
    request = look(bench)
    folder = make_out(options.out or next_folder(Path("runs"), "compare"))
    with locked(folder):
        bench.claim(folder, request)
        try:
            bench.run(folder, request)
        except KeyboardInterrupt:
            raise Interrupted(
                "stopped; what is done is kept", f"Go on with the same command and --out {folder}."
            ) from None
        comparison = write_comparison(folder)
    _show(comparison, options.json)
    return 1 if comparison.agrees is False or any(r.state == FAILED for r in comparison.results.values()) else 0


def _parse(arguments: Sequence[str]) -> tuple[CompareArguments, RunConfig]:
    """With what an adapter to start from brings, as `torso train` has it."""
    from torso.cli.adapters import with_adapter

    def parsed(default: RunConfig) -> tuple[CompareArguments, RunConfig]:
        return parse_both(CompareArguments, default, "compare", arguments)

    options, config = parsed(RunConfig(evaluate="none"))
    return options, with_adapter(config, lambda brought: parsed(brought)[1])[1]


def _show(comparison: Comparison, as_json: bool) -> None:
    from torso.report.comparison.write import PAGE, document_of, text_of

    if as_json:
        print(json.dumps(finite(document_of(comparison)), indent=1, allow_nan=False))
    else:
        print(text_of(comparison))
    print(f"report: {comparison.path / PAGE}", file=sys.stderr)


def chosen_strategies(text: str) -> list[str]:
    """Raises ConfigError naming one that is none, or that comes twice."""
    known = typing.get_args(typing.get_type_hints(RunConfig)["strategy"])
    names = _names(text) or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"no strategy is called {unknown[0]!r}", f"Choose among {', '.join(known)}.")
    if len(set(names)) < len(names):
        raise ConfigError(f"strategies is {text!r}, with one of them twice", "Give each once.")
    return names


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> list[int]:
    names = _names(text)
    if not names or not all(name.isdigit() and int(name) > 0 for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"nproc is {text!r}", "Give numbers of processes, each once: 1,2,4.")
    return sorted(map(int, names))
