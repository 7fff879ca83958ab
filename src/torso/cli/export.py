"""`torso export`: a run's adapter for peft, or a whole model for transformers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from torch import Tensor

from torso.adapters import peft_format
from torso.adapters.inject import inject
from torso.adapters.merge import merged_state
from torso.adapters.peft_format import PeftAdapter
from torso.cli.adapters import adapter_of, read_adapter
from torso.cli.assembly import Assembly
from torso.cli.card import model_card, tokenizer_settings
from torso.cli.chosen import check_base, chosen
from torso.cli.parsing import parse
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.model.config import Cuts
from torso.model.hub import TOKENIZER_FILES, tokenizer_folder
from torso.model.stages import GPT2
from torso.model.weights import build, save_folder
from torso.records import EvaluationRecord
from torso.training.files import new_directory
from torso.training.run_directory import MetricsLog, RunDirectory

Format = Literal["peft", "merged"]


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write a run's adapter for peft, or a merged model for transformers."""

    run_dir: Annotated[Path | None, tyro.conf.Positional] = None
    """The run."""
    out: Path | None = None
    """Folder to write; it must not hold anything."""
    format: Format = "peft"
    """peft: the adapter, as PeftModel.from_pretrained loads it. merged: GPT-2 with the adapter merged in float32."""
    checkpoint: str = "last"
    """last, best, or a step."""
    adapter: Path | None = None
    """A peft adapter's folder in place of a run."""
    model: str = "mini"
    """With --adapter: the model that it belongs to."""


@dataclass(frozen=True)
class Exported:
    """What is written, and what its card says."""

    config: RunConfig
    adapter: PeftAdapter
    step: int | None = None
    scores: tuple[EvaluationRecord, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Check, write, say where."""
    options = parse(ExportArguments, "export", arguments)
    if (options.run_dir is None) == (options.adapter is None):
        raise ConfigError("neither or both of a run and --adapter are given", "Give one of them.")
    if options.out is None:
        raise ConfigError("no --out is given", "Name a new folder.")
    if options.run_dir is None:
        adapter, config = read_adapter(options.adapter or Path(), RunConfig(model=options.model))
        exported = Exported(config, adapter)
    else:
        exported = of_run(RunDirectory(options.run_dir), options.checkpoint)
    write(exported, options.out, options.format)
    print(options.out)
    return 0


def of_run(run: RunDirectory, which: str) -> Exported:
    """The adapter of one of a run's checkpoints."""
    config = RunConfig.from_toml(run.path / "config.toml")
    assembly, checkpoint = Assembly(config), chosen(run, which)
    check_base(assembly, checkpoint)
    scores: dict[tuple[str, str], EvaluationRecord] = {}
    for record in MetricsLog(run.path).read(EvaluationRecord):
        if isinstance(record, EvaluationRecord) and record.step == checkpoint.step and record.adapted:
            scores |= {} if record.partial else {(record.subset, record.decoding): record}
    adapter = adapter_of(config, checkpoint, assembly.source.fingerprint(None))
    return Exported(config, adapter, checkpoint.step, tuple(scores.values()))


def write(exported: Exported, out: Path, kind: Format) -> None:
    """The folder, whole or not at all. Raises ConfigError when it holds anything already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there and not empty", "Name a new folder with --out.")
    assembly = Assembly(exported.config)
    with new_directory(out) as folder:
        if kind == "peft":
            peft_format.write(folder, exported.adapter, exported.config.model)
        else:
            save_folder(folder, assembly.source.config, merged(assembly, exported.adapter))
            _write_tokenizer(folder, exported.config, assembly)
        base, adapter = assembly.source.fingerprint(None), exported.adapter.config
        card = model_card(kind, exported.config, adapter, base, exported.step, exported.scores)
        (folder / "README.md").write_text(card, encoding="utf-8")


def merged(assembly: Assembly, adapter: PeftAdapter) -> dict[str, Tensor]:
    """All of the model's tensors with the adapter merged in, in float32; needs the whole model's weights here."""
    source = assembly.source
    model = build(lambda config, cuts: GPT2(config), source, Cuts.default(source.config.n_layer))
    peft_format.load(inject(model, adapter.config, seed=0), adapter)
    return merged_state(model)


def _write_tokenizer(folder: Path, config: RunConfig, assembly: Assembly) -> None:
    """Its files as they are, so that the folder can be used with --model."""
    source = Path(config.tokenizer) if config.tokenizer else tokenizer_folder(config.model)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    settings = tokenizer_settings(assembly.source.config.n_positions)
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
