"""Between adapter folders, a run's checkpoints and a model: what `train`, `evaluate` and `export` have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torso.adapters import peft_format
from torso.adapters.config import AdapterConfig
from torso.adapters.peft_format import PeftAdapter
from torso.cli.assembly import Assembly
from torso.config import RunConfig
from torso.errors import AdapterError, ConfigError
from torso.model.config import SIZES
from torso.model.hub import config_of
from torso.model.names import expected_shapes
from torso.model.weights import WeightSource
from torso.training.checkpoint import Checkpoint
from torso.training.optimizer import MOMENTS

_SETTINGS = {"adapter": "kind", "lora_rank": "lora_rank", "alpha": "alpha", "rslora": "rslora", "targets": "targets",
             "modules": "modules"}  # fmt: skip
"""Names in RunConfig and in AdapterConfig; dropout is left out, for only training needs it, and may change it."""


def read_adapter(folder: Path, config: RunConfig) -> tuple[PeftAdapter, RunConfig]:
    """The folder's adapter, and the settings with what it brings; its fingerprint is recorded in them.

    Raises AdapterError when it does not fit the model of `config`.
    """
    _check_named_base(peft_format.named_base(folder), folder, config.model)
    adapter = peft_format.read(folder, config_of(config.model).n_layer)
    found, expected = adapter.fingerprint(), config.init_adapter_sha256
    if expected not in (None, found):
        raise AdapterError(f"{folder} has the fingerprint {found}, expected {expected}", "Is it another adapter?")
    _check_base(adapter, folder, Assembly(config))
    settings: dict[str, Any] = {name: getattr(adapter.config, of_adapter) for name, of_adapter in _SETTINGS.items()}
    settings |= {"adapter_dropout": adapter.config.dropout, "init_adapter_sha256": found}
    return adapter, dataclasses.replace(config, **settings)


def with_adapter(
    config: RunConfig, parse_again: Callable[[RunConfig], RunConfig]
) -> tuple[PeftAdapter | None, RunConfig]:
    """The adapter to start from, where one is asked for, and the settings with what it brings.

    `parse_again` reads the request anew with other defaults: on top of what the adapter brings, a flag that was given
    shows, even one that equals the usual default. Raises as `read_adapter`, and ConfigError where a flag disagrees.
    """
    if config.init_adapter is None:
        return None, config
    adapter, brought = read_adapter(Path(config.init_adapter), config)
    config = parse_again(brought)
    _check_agrees(config, brought)
    return adapter, config


def _check_agrees(given: RunConfig, brought: RunConfig) -> None:
    """Raise ConfigError naming a setting that was given and that is another in the adapter to start from."""
    for name in _SETTINGS:
        ours, theirs = getattr(given, name), getattr(brought, name)
        if name == "targets":
            ours = AdapterConfig(targets=ours).targets
        if ours != theirs:
            found = f"{name} is {ours}, the adapter in {given.init_adapter} has {theirs}"
            raise ConfigError(found, "Leave it out: the adapter says what it is.")


def start_from(adapter: PeftAdapter) -> Checkpoint:
    """The adapter as a run's state at step 0, with an optimizer that has seen nothing."""
    state: dict[str, Tensor] = {f"adapter:{name}": tensor for name, tensor in adapter.tensors.items()}
    for moment in MOMENTS:
        state |= {f"{moment}:{name}": torch.zeros_like(tensor) for name, tensor in adapter.tensors.items()}
    return Checkpoint(0, state | {"optimizer_step": torch.tensor([0])}, {})


def base_of(source: WeightSource) -> dict[str, str]:
    """Fingerprints of the base as far as it is here: "embeddings", and "h.0" and so on of its blocks."""
    blocks = range(source.config.n_layer)
    here = [block for block in blocks if source.has(range(block, block + 1))]
    of_blocks = {f"h.{block}": source.fingerprint(range(block, block + 1)) for block in here}
    return {"embeddings": source.fingerprint(None)} | of_blocks


def is_path(base: str) -> bool:
    """Whether a base's name is a place on somebody's disk rather than a name on the hub."""
    return base.startswith(("/", ".", "~")) or base.count("/") > 1 or Path(base).is_dir()


def _check_named_base(base_model: str | None, folder: Path, model: str) -> None:
    """Raise AdapterError when both sides have names that say that they differ; a folder's path says nothing."""
    named = (base_model or "").removeprefix("openai-community/")
    if named and not is_path(named) and model in ("mini", *SIZES) and named != model:
        remedy = "Give --model with the model's name." if named in ("mini", *SIZES) else "Give --model with its folder."
        raise AdapterError(f"{folder} was trained on {named}, not on {model}", remedy)


def _check_base(adapter: PeftAdapter, folder: Path, assembly: Assembly) -> None:
    """Raise AdapterError unless the adapter can belong to the model."""
    model, ours = assembly.config.model, base_of(assembly.source) if adapter.base else {}
    differing = [part for part in adapter.base if part in ours and adapter.base[part] != ours[part]]
    if differing:
        found = f"{folder} was trained on other weights than those of {model} ({', '.join(differing[:3])})"
        raise AdapterError(found, "Give the --model it is of.")
    shapes = expected_shapes(assembly.source.config)
    for name, tensor in adapter.tensors.items():
        module, _, leaf = name.rpartition(".")
        if f"{module}.weight" not in shapes:
            found = f"{folder} has tensors of {module}, {model} has {assembly.source.config.n_layer} blocks"
            raise AdapterError(found, "Give the --model that it was trained on.")
        out, width = shapes[f"{module}.weight"]
        size = {"lora_A": tensor.shape[-1] == width, "lora_B": tensor.shape[0] == out}.get(leaf, tensor.shape[0] == out)
        if not size:
            found = f"{name} in {folder} is {list(tensor.shape)}, the layer of {model} is {out} × {width}"
            raise AdapterError(found, "Give the --model that it was trained on.")
