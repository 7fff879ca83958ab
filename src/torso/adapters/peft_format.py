"""PEFT's adapter folders: adapter_config.json and adapter_model.safetensors (peft 0.21), read strictly.

PEFT itself loads some broken folders without a word: magnitudes whose config lacks `use_dora`, keys without their
prefix. Here a folder is either understood as a whole or refused with the name of what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from torso.adapters.config import AdapterConfig
from torso.adapters.names import parameter_order
from torso.adapters.peft_settings import config_from, settings_for, target_of
from torso.errors import AdapterError

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model.transformer."
_SUFFIXES = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_STAMP, _BASE, _SUM = "torso_adapter", "torso_base", "torso_sha256"


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter as a folder holds it: head, body and tail together."""

    config: AdapterConfig
    """Dropout included; it matters only when training goes on."""
    tensors: dict[str, Tensor]
    """Float32 on the CPU by Torso's names ("h.2.attn.c_attn.lora_A"), in global order."""
    base: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the base's "embeddings" and of its blocks ("h.0"), where Torso wrote the folder and knew them."""

    def fingerprint(self) -> str:
        """SHA-256 of what the tensors mean and of their names, shapes and values, hexadecimal."""
        return _sum(self.tensors, _stamp(self.config))


def read(folder: Path, num_blocks: int | None = None) -> PeftAdapter:
    """Read a folder. Raises AdapterError naming what is missing, unexpected, misshapen or not supported.

    `num_blocks` is the model's: without it, missing last blocks are noticed by `load` only.
    """
    settings = _read_settings(folder / CONFIG)
    stored, metadata = _read_tensors(folder / TENSORS)
    tensors = {_torso_name(key, folder): value for key, value in stored.items()}
    has_magnitudes = any(name.endswith(".magnitude") for name in tensors)
    if has_magnitudes and settings.get("use_dora") is not True:
        raise AdapterError(
            f"{folder} holds DoRA magnitudes but {CONFIG} says use_dora {settings.get('use_dora', 'nowhere')}",
            "Set use_dora to true if it was trained with DoRA.",
        )
    config = config_from(settings, sorted({name.rpartition(".")[0] for name in tensors}), folder, num_blocks)
    stamp = metadata.get(_STAMP, _stamp(config))
    if stamp != _stamp(config):
        found = f"{folder / CONFIG} was changed: trained with {stamp}, it says {_stamp(config)}"
        raise AdapterError(found, "Restore it.")
    _check_names(tensors, config, folder)
    _check_shapes(tensors, config, folder)
    if metadata.get(_SUM, "") not in ("", _sum(tensors, stamp)):
        raise AdapterError(f"{folder / TENSORS} was changed since Torso wrote it", "Restore it.")
    return PeftAdapter(config, {name: tensors[name] for name in parameter_order(tensors)}, _base(metadata, folder))


def named_base(folder: Path) -> str | None:
    """What the folder calls its base, from its configuration alone. Raises AdapterError."""
    named = _read_settings(folder / CONFIG).get("base_model_name_or_path")
    if named is not None and not isinstance(named, str):
        raise AdapterError(f"{folder} has base_model_name_or_path {named!r}", "Expected a name, a path or null.")
    return named


def write(folder: Path, adapter: PeftAdapter, base_model: str | None = None) -> None:
    """Write a folder that peft loads; `base_model` is the name or path recorded in it.

    Raises AdapterError when the folder holds an adapter already or the tensors are not a whole adapter. The
    configuration comes last, so that a folder that has one is whole.
    """
    if (folder / CONFIG).exists() or (folder / TENSORS).exists():
        raise AdapterError(f"{folder} holds an adapter already", "Give another folder.")
    _check_names(adapter.tensors, adapter.config, folder)
    _check_shapes(adapter.tensors, adapter.config, folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {_peft_name(name): t.detach().float().cpu().contiguous() for name, t in adapter.tensors.items()}
    metadata = {"format": "pt", _STAMP: _stamp(adapter.config), _SUM: adapter.fingerprint()}
    metadata |= {_BASE: json.dumps(dict(adapter.base))} if adapter.base else {}
    _replace(folder / TENSORS, safetensors.torch.save(stored, metadata))
    settings = json.dumps(settings_for(adapter.config, base_model), indent=2, sort_keys=True)
    _replace(folder / CONFIG, settings.encode())


@torch.no_grad()
def load(parameters: Mapping[str, nn.Parameter], adapter: PeftAdapter) -> None:
    """Copy the adapter's values into the injected `parameters` (all of the model's).

    All is checked before anything changes; raises AdapterError naming what the two do not share.
    """
    _check_same(
        parameters.keys(),
        adapter.tensors.keys(),
        "the adapter",
        "Was it trained on this model, on these targets?",
    )
    for name, parameter in parameters.items():
        _check_shape(name, adapter.tensors[name], tuple(parameter.shape), "the adapter")
    for name, parameter in parameters.items():
        parameter.copy_(adapter.tensors[name])


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise AdapterError(f"{path.parent} has no {CONFIG}", "Give a folder that peft or torso export wrote.")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_duplicates)
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is no readable JSON: {error}", "Write it anew.") from None
    if not isinstance(settings, dict):
        raise AdapterError(f"{path} holds a {type(settings).__name__}, expected an object", "Write it anew.")
    return settings


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two values under one name peft takes the last without a word."""
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]} is there twice")
    return dict(pairs)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors in float32, and what Torso noted about them when it wrote the file."""
    if not path.is_file():
        raise AdapterError(f"{path.parent} has no {TENSORS}", "Adapters must be safetensors; pickles are not read.")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{path} cannot be read: {error}", "Copy it again.") from None
    for key, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or not bool(tensor.float().isfinite().all()):
            raise AdapterError(
                f"{key} in {path} holds {tensor.dtype} that are not all finite numbers in float32", "Copy it again."
            )
    return {key: tensor.float() for key, tensor in tensors.items()}, metadata


def _torso_name(key: str, folder: Path) -> str:
    """ "base_model.model.transformer.h.2.attn.c_attn.lora_A.weight" → "h.2.attn.c_attn.lora_A"."""
    for leaf, suffix in _SUFFIXES.items():
        if key.startswith(f"{PREFIX}h.") and key.endswith(f".{suffix}"):
            return f"{key.removeprefix(PREFIX).removesuffix(suffix)}{leaf}"
    expected = f"{PREFIX}h.0.attn.c_attn.lora_A.weight and the like"
    raise AdapterError(f"{folder / TENSORS} holds the unexpected tensor {key}", f"Expected {expected}.")


def _peft_name(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{PREFIX}{module}.{_SUFFIXES[leaf]}"


def _stamp(config: AdapterConfig) -> str:
    """What the tensors mean; a configuration edited later does not agree with it."""
    if config.modules:
        return f"{config.kind} {' '.join(config.modules)}{' rslora' if config.rslora else ''}"
    return f"{config.kind} rank {config.lora_rank} scaling {config.scaling!r}"


def _sum(tensors: Mapping[str, Tensor], stamp: str) -> str:
    digest = hashlib.sha256(f"{stamp}\n".encode())
    for name in parameter_order(tensors):
        tensor = tensors[name].detach().float().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _base(metadata: Mapping[str, str], folder: Path) -> dict[str, str]:
    try:
        base = json.loads(metadata.get(_BASE, "{}"))
    except ValueError:
        base = None
    if not isinstance(base, dict):
        raise AdapterError(f"{folder / TENSORS} has unreadable fingerprints of its base", "Export it again.")
    return base


def _check_names(tensors: Mapping[str, Tensor], config: AdapterConfig, folder: Path) -> None:
    """Every block up to the last one named has every target, and each target all of its tensors."""
    last = max((int(name.split(".")[1]) for name in tensors), default=0)
    leaves = ("lora_A", "lora_B", "magnitude") if config.kind == "dora" else ("lora_A", "lora_B")
    modules = list(config.sizes) or [f"h.{layer}.{target}" for layer in range(last + 1) for target in config.targets]
    whole = [f"{module}.{leaf}" for module in modules for leaf in leaves]
    _check_same(whole, tensors, f"the adapter of {folder}", "Is it whole?")


def _check_shapes(tensors: Mapping[str, Tensor], config: AdapterConfig, folder: Path) -> None:
    """A is [R, in], B [out, R], a magnitude [out]; in and out are the same in every block."""
    sizes: dict[str, tuple[int, int]] = {}
    for name in tensors:
        module, target = name.rpartition(".")[0], target_of(name.rpartition(".")[0])
        lora_rank, _ = config.size(module) or (0, 0.0)
        b, a = tensors[f"{module}.lora_B"].shape, tensors[f"{module}.lora_A"].shape
        out, width = sizes.setdefault(target, (b[0] if b else 0, a[-1] if a else 0))
        shapes = {"lora_A": (lora_rank, width), "lora_B": (out, lora_rank), "magnitude": (out,)}
        _check_shape(name, tensors[name], shapes[name.rpartition(".")[2]], f"the adapter of {folder}")


def _check_same(expected: Any, found: Any, where: str, remedy: str) -> None:
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing:
        raise AdapterError(f"{where} lacks {_some(missing)}", remedy)
    if unexpected:
        raise AdapterError(f"{where} has {_some(unexpected)}, which is not expected", remedy)


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], where: str) -> None:
    if tuple(tensor.shape) != expected:
        shape = tuple(tensor.shape)
        raise AdapterError(f"{name} of {where} has shape {shape}, expected {expected}", "Do they belong together?")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _replace(path: Path, data: bytes) -> None:
    """Write the whole file beside its place, then move it there."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
