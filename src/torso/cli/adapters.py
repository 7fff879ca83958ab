"""Between adapter folders, a run's checkpoints and a model: what `train`, `evaluate` and `export` have in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from torso.adapters import peft_format
from torso.adapters.peft_format import PeftAdapter
from torso.cli.assembly import Assembly
from torso.config import RunConfig
from torso.errors import AdapterError, ConfigError
from torso.model.config import SIZES
from torso.model.hub import config_of
from torso.model.names import expected_shapes
from torso.training.checkpoint import Checkpoint
from torso.training.part import MOMENTS

_SETTINGS = {"adapter": "kind", "lora_rank": "lora_rank", "alpha": "alpha", "rslora": "rslora", "targets": "targets",
             "modules": "modules", "adapter_dropout": "dropout"}  # fmt: skip
"""Names in RunConfig and in AdapterConfig."""


def read_adapter(folder: Path, config: RunConfig) -> tuple[PeftAdapter, RunConfig]:
    """The folder's adapter, and the settings with what it brings.

    Raises AdapterError when it does not fit the model of `config`, ConfigError when a setting says otherwise.
    """
    _check_named_base(peft_format.read(folder), folder, config.model)
    adapter = peft_format.read(folder, config_of(config.model).n_layer)
    _check_base(adapter, folder, Assembly(config))
    for name, of_adapter in _SETTINGS.items():
        given, brought = getattr(config, name), getattr(adapter.config, of_adapter)
        default = RunConfig.__dataclass_fields__[name].default
        # dropout only matters when training goes on: another may be asked for
        if given not in (default, brought) and name != "adapter_dropout":
            raise ConfigError(f"{name} is {given}, the adapter in {folder} has {brought}", "Leave it out.")
    settings = {name: getattr(adapter.config, of_adapter) for name, of_adapter in _SETTINGS.items()}
    if config.adapter_dropout:
        settings["adapter_dropout"] = config.adapter_dropout
    settings["adapter"] = adapter.config.kind
    return adapter, dataclasses.replace(config, **settings)


def start_from(adapter: PeftAdapter) -> Checkpoint:
    """The adapter as a run's state at step 0, with an optimizer that has seen nothing."""
    state: dict[str, Tensor] = {f"adapter:{name}": tensor for name, tensor in adapter.tensors.items()}
    for moment in MOMENTS:
        state |= {f"{moment}:{name}": torch.zeros_like(tensor) for name, tensor in adapter.tensors.items()}
    return Checkpoint(0, state | {"optimizer_step": torch.tensor([0])}, {})


def adapter_of(config: RunConfig, checkpoint: Checkpoint, base: str) -> PeftAdapter:
    """Head, body and tail of a checkpoint as one adapter; `base` is the fingerprint of the model's embeddings."""
    prefix = "adapter:"
    tensors = {key.removeprefix(prefix): t for key, t in checkpoint.state.items() if key.startswith(prefix)}
    return PeftAdapter(config.adapter_config, tensors, base)


def _check_named_base(adapter: PeftAdapter, folder: Path, model: str) -> None:
    """Before anything of the model is read: both may have names that say that they differ."""
    named = (adapter.base_model or "").removeprefix("openai-community/")
    if named in ("mini", *SIZES) and model in ("mini", *SIZES) and named != model:
        raise AdapterError(f"{folder} was trained on {named}, not on {model}", f"Give --model {named}.")


def _check_base(adapter: PeftAdapter, folder: Path, assembly: Assembly) -> None:
    """Raise AdapterError unless the adapter can belong to the model."""
    model = assembly.config.model
    if adapter.base not in (None, assembly.source.fingerprint(None)):
        raise AdapterError(f"{folder} was trained on other weights than those of {model}", "Give the --model it is of.")
    shapes = expected_shapes(assembly.source.config)
    for name, tensor in adapter.tensors.items():
        module, _, leaf = name.rpartition(".")
        out, width = shapes[f"{module}.weight"]
        size = {"lora_A": tensor.shape[-1] == width, "lora_B": tensor.shape[0] == out}.get(leaf, tensor.shape[0] == out)
        if not size:
            found = f"{name} in {folder} is {list(tensor.shape)}, the layer of {model} is {out} × {width}"
            raise AdapterError(found, "Give the --model that it was trained on.")
