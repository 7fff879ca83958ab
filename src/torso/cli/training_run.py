"""What `train` and `resume` have in common: checks before ranks start, the ranks, and the end."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

from torso.cli.assembly import Assembly, num_threads
from torso.cli.chosen import check_base
from torso.config import RunConfig
from torso.errors import ConfigError, DataError, Interrupted, RunDirectoryError
from torso.model.names import expected_shapes
from torso.parallel.arithmetic import differences
from torso.parallel.units import check_compiler
from torso.split.client.servers import check_before_start
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import RunDirectory


def check(assembly: Assembly) -> None:
    """Everything that can be checked before ranks start; raises a RequestError."""
    assembly.prepare_process()
    assembly.source.check(assembly.own_tensors)
    _check_modules(assembly)
    _ = assembly.devices, assembly.arithmetic, assembly.plan
    for note in assembly.corpus.notes:
        print(f"data: {note}", file=sys.stderr)
    print(f"data: {assembly.config.data}: {assembly.encoded.report}", file=sys.stderr)
    if assembly.config.compile:
        check_compiler()
    if assembly.config.strategy == "split":
        with contextlib.closing(assembly.transport()) as transport:
            check_before_start(transport, assembly.config.server, assembly.job_spec)
    if assembly.config.evaluate != "none":
        _check_evaluation(assembly, assembly.config.evaluate)


def _check_modules(assembly: Assembly) -> None:
    """Raise ConfigError when an adapter is asked for on a layer that the model does not have."""
    layers = expected_shapes(assembly.source.config)
    for module in assembly.config.modules:
        if f"{module.partition('=')[0]}.weight" not in layers:
            num_blocks = assembly.source.config.n_layer
            raise ConfigError(f"modules has {module!r}, the model has {num_blocks} blocks", "They count from h.0.")


def _check_evaluation(assembly: Assembly, subset: str) -> None:
    """What would else be found wrong at the end of training: no such subset, inputs that are too long."""
    from torso.evaluation.evaluate import check_inputs

    try:
        check_inputs(assembly.corpus.split(subset), assembly.tokenizer, assembly.max_tokens)
    except DataError as error:
        raise DataError(error.message, f"{error.remedy} Or train with --evaluate none.".strip()) from None


def check_identity(assembly: Assembly, run: RunDirectory) -> None:
    """Raise RunDirectoryError when data, base weights or arithmetic are others than the checkpoint's."""
    newest = checkpoints.load_newest(run.checkpoints)
    if newest is None:
        return
    ours: dict[str, Any] = assembly.identity
    check_base(assembly, newest)
    for name, what in (("data", "data set"), ("plan", "micro-batches")):
        if newest.info.get(name) != ours[name]:
            raise RunDirectoryError(f"{what}: not what {run.path} was trained on", "Restore what was there.")
    differing = differences(ours["arithmetic"], newest.info.get("arithmetic", {}))
    if differing and not assembly.config.allow_inexact:
        raise RunDirectoryError(
            f"this machine computes otherwise than the run did: {'; '.join(differing)}",
            "Make them equal, or accept other last bits with --allow-inexact.",
        )


def run_ranks(assembly: Assembly, run: RunDirectory) -> None:
    """Train to the recorded target, in one process or in ranks under the agent. Raises Interrupted when stopped."""
    from torso.cli.client_rank import train
    from torso.parallel.launch import launch

    config = assembly.config
    if config.strategy == "single":
        train(run, config, run.state.epochs)
        return
    stopped = False
    try:
        launch(
            "torso.cli.client_rank",
            [str(run.path)],
            num_ranks=config.num_ranks,
            threads=num_threads(config),
            progress=lambda: checkpoints.steps(run.checkpoints),
        )
    except KeyboardInterrupt:
        stopped = True
    # ranks that were asked to stop one by one have ended well too
    saved, target = checkpoints.steps(run.checkpoints), run.state.epochs * assembly.plan.steps_per_epoch
    if stopped or not saved or saved[-1] < target:
        what = f"the state of step {saved[-1]} is saved" if saved else "nothing was trained yet"
        raise Interrupted(f"stopped; {what}", f"Go on with `torso resume {run.path}`.")


def finish(config: RunConfig, run: RunDirectory) -> None:
    """Evaluate, and write the report."""
    from torso.cli.final_scores import score_run
    from torso.report.page import write_page

    if config.evaluate != "none":
        score_run(run, dataclasses.replace(config, evaluate="none"), config.evaluate)
    path = write_page(run.path)
    print(f"report: {path}", file=sys.stderr)
