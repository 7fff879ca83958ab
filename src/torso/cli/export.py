"""`torso export`: a run's adapter for peft, or a whole model for transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from torch import Tensor

from torso.adapters import peft_format
from torso.adapters.inject import LEAVES, inject
from torso.adapters.merge import merged_state
from torso.adapters.peft_format import PeftAdapter
from torso.cli.adapters import base_of, read_adapter
from torso.cli.assembly import Assembly
from torso.cli.card import hub_name, model_card, tokenizer_settings
from torso.cli.chosen import check_base, chosen
from torso.cli.model_arguments import check_one
from torso.cli.parsing import parse, refuse_idle
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.files import check_place, new_directory
from torso.model.config import Cuts
from torso.model.hub import TOKENIZER_FILES, tokenizer_folder
from torso.model.stages import GPT2
from torso.model.weights import build, save_folder
from torso.records import EvaluationRecord
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import MetricsLog, RunDirectory

Format = Literal["peft", "merged", "hf"]


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write a run's adapter for peft, or a model for transformers."""

    run_dir: Annotated[Path | None, tyro.conf.Positional] = None
    """The run."""
    out: Path | None = None
    """Folder to write; it must not hold anything."""
    format: Format = "peft"
    """peft: the adapter, as PeftModel.from_pretrained loads it. merged: GPT-2 with the adapter merged in, in float32.
    hf: GPT-2 of a run that trained all weights."""
    checkpoint: str = "last"
    """last, best, or a step."""
    adapter: Path | None = None
    """A peft adapter's folder in place of a run."""
    model: str = "mini"
    """With --adapter: the model that it belongs to."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class Exported:
    """What is written, and what its card says: an adapter, or all weights of a run that trained them."""

    config: RunConfig
    adapter: PeftAdapter | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)
    step: int | None = None
    scores: tuple[EvaluationRecord, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Check, write, say where."""
    options = parse(ExportArguments, "export", arguments)
    check_one(options.run_dir, options.adapter)
    if options.out is None:
        raise ConfigError("no --out is given", "Name a new folder.")
    if options.run_dir is None:
        refuse_idle(options, "--adapter", ["checkpoint"])
        adapter, config = read_adapter(options.adapter or Path(), RunConfig(model=options.model))
        exported = Exported(config, adapter)
    else:
        refuse_idle(options, "a run", ["model"])
        exported = of_run(RunDirectory(options.run_dir), options.checkpoint)
    write(exported, options.out, options.format)
    document = {"out": str(options.out), "format": options.format, "step": exported.step}
    print(json.dumps(document) if options.json else options.out)
    return 0


def of_run(run: RunDirectory, which: str) -> Exported:
    """What one of a run's checkpoints holds: head, body and tail together."""
    config = RunConfig.from_toml(run.path / "config.toml")
    assembly, checkpoint = Assembly(config), chosen(run, which)
    check_base(assembly, checkpoint)
    trained = checkpoint.trained()
    scores = _scores(run, checkpoint)
    if any(name.rpartition(".")[2] in LEAVES for name in trained):
        adapter = PeftAdapter(config.adapter_config, trained, base_of(assembly.source))
        return Exported(config, adapter, step=checkpoint.step, scores=scores)
    return Exported(config, weights=trained, step=checkpoint.step, scores=scores)


def write(exported: Exported, out: Path, kind: Format) -> None:
    """The folder, whole or not at all. Raises ConfigError when it holds anything already, or cannot be of this kind."""
    out = out.expanduser().resolve()
    _check_kind(exported, kind)
    _check_new(out)
    assembly = Assembly(exported.config)
    with new_directory(out) as folder:
        if kind == "peft" and exported.adapter is not None:
            peft_format.write(folder, exported.adapter, hub_name(exported.config) or _local_name(exported.config))
        else:
            save_folder(folder, assembly.source.config, _whole(assembly, exported))
            _write_tokenizer(folder, exported.config, assembly)
        config = exported.adapter.config if exported.adapter else None
        card = model_card(kind, exported.config, config, base_of(assembly.source), exported.step, exported.scores)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _scores(run: RunDirectory, checkpoint: Checkpoint) -> tuple[EvaluationRecord, ...]:
    """The newest of each kind that the run's log has of this checkpoint."""
    scores: dict[tuple[str, str], EvaluationRecord] = {}
    for record in MetricsLog(run.path).read(EvaluationRecord):
        if isinstance(record, EvaluationRecord) and record.step == checkpoint.step and record.adapted:
            scores |= {} if record.partial else {(record.subset, record.decoding): record}
    return tuple(scores.values())


def _check_kind(exported: Exported, kind: Format) -> None:
    if exported.adapter is None and kind != "hf":
        raise ConfigError(f"there is no adapter to write as {kind}: the run trained all weights", "Give --format hf.")
    if exported.adapter is not None and kind == "hf":
        found = "--format hf is for runs that trained all weights, here is an adapter"
        raise ConfigError(found, "Give --format peft, or merged for a whole model.")


def _check_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there and not empty", "Name a new folder with --out.")
    check_place(out, "out", folder=True)


def _whole(assembly: Assembly, exported: Exported) -> dict[str, Tensor]:
    """All of the model's tensors in float32, by name; with an adapter, the whole base's weights must be here."""
    if exported.adapter is None:
        return {name: tensor.float() for name, tensor in exported.weights.items()}
    source = assembly.source
    model = build(lambda config, cuts: GPT2(config), source, Cuts.default(source.config.n_layer))
    peft_format.load(inject(model, exported.adapter.config, seed=0), exported.adapter)
    return merged_state(model)


def _local_name(config: RunConfig) -> str | None:
    """What this machine calls the base: "mini", or the folder's path. Random weights have no name."""
    if config.init == "random":
        return None
    return config.model if config.model == "mini" else str(Path(config.model).expanduser().resolve())


def _write_tokenizer(folder: Path, config: RunConfig, assembly: Assembly) -> None:
    """Its files as they are, where there are any, so that the folder can be used with --model."""
    source = Path(config.tokenizer) if config.tokenizer else tokenizer_folder(config.model)
    if not any((source / name).is_file() for name in TOKENIZER_FILES):
        return
    for name in (*TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if not (folder / "tokenizer_config.json").exists():
        settings = tokenizer_settings(assembly.source.config.n_positions)
        (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
