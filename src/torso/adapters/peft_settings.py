"""The meaning of peft's adapter_config.json: which settings Torso understands, and which must stand at rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.adapters.config import AdapterConfig
from torso.errors import AdapterError

_UNDERSTOOD = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "bias",
    "target_modules",
    "use_dora",
    "use_rslora",
}
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
}
_KEEP_THE_BASE = (True, False, None, "gaussian", "orthogonal")
"""Initialisations that leave the base's weights alone; others (PiSSA, OLoRA, …) change them."""
_MODULE = re.compile(r"h\.\d+\.(.+)")


def config_from(settings: Mapping[str, Any], modules: Sequence[str], folder: Path) -> AdapterConfig:
    """The configuration of a folder whose tensors belong to `modules` ("h.2.attn.c_attn"). Raises AdapterError."""
    _refuse_other_kinds(settings, folder)
    _refuse_unknown_settings(settings, folder)
    lora_rank = _number(settings, "r", folder)
    if lora_rank != int(lora_rank):
        raise AdapterError(f"{folder} has rank {lora_rank}", "Expected a whole number.")
    return AdapterConfig(
        kind="dora" if _flag(settings, "use_dora", folder) else "lora",
        lora_rank=int(lora_rank),
        alpha=float(_number(settings, "lora_alpha", folder)),
        dropout=float(_number(settings, "lora_dropout", folder, 0.0)),
        rslora=_flag(settings, "use_rslora", folder),
        targets=_targets(settings, modules, folder),
    )


def settings_for(config: AdapterConfig, base_model: str | None) -> dict[str, Any]:
    """What peft needs to load the adapter onto transformers' GPT-2."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": config.lora_rank,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "bias": "none",
        "target_modules": list(config.targets),
        "fan_in_fan_out": True,
        "use_dora": config.kind == "dora",
        "use_rslora": config.rslora,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _refuse_other_kinds(settings: Mapping[str, Any], folder: Path) -> None:
    if settings.get("peft_type") != "LORA":
        found = f"{folder} has peft_type {settings.get('peft_type')!r}"
        raise AdapterError(found, "Only LORA (LoRA, rsLoRA, DoRA) is read.")
    if settings.get("task_type") not in ("CAUSAL_LM", None):
        raise AdapterError(f"{folder} has task_type {settings['task_type']!r}", "Only CAUSAL_LM is read.")
    if settings.get("bias", "none") != "none":
        raise AdapterError(f"{folder} trains biases ({settings['bias']!r})", "Only bias none is read.")
    if settings.get("init_lora_weights", True) not in _KEEP_THE_BASE:
        found = f"{folder} was initialised by {settings['init_lora_weights']!r}, which changes the base's weights"
        raise AdapterError(found, "Convert it to a plain LoRA with peft first.")


def _refuse_unknown_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Whatever is not understood must be empty or off: null, false, an empty list or object."""
    known = _UNDERSTOOD | _WITHOUT_EFFECT | {"init_lora_weights"}
    active = [key for key in sorted(settings) if key not in known and settings[key] not in (None, False, {}, [], "")]
    if active:
        found = f"{folder} has {active[0]} = {settings[active[0]]!r}"
        raise AdapterError(found, "Torso has one rank and one alpha for whole layers and no such setting.")


def _number(settings: Mapping[str, Any], key: str, folder: Path, default: float | None = None) -> float:
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AdapterError(f"{folder} has {key} {value!r}", "Expected a number, as the adapter was trained with.")
    return value


def _flag(settings: Mapping[str, Any], key: str, folder: Path) -> bool:
    value = settings.get(key, False)
    if not isinstance(value, bool):
        raise AdapterError(f"{folder} has {key} {value!r}", "Expected true or false.")
    return value


def _targets(settings: Mapping[str, Any], modules: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The layers that have tensors, which must be those that target_modules names."""
    named = settings.get("target_modules")
    if not isinstance(named, list) or not all(isinstance(target, str) for target in named):
        raise AdapterError(f"{folder} has target_modules {named!r}", "Expected a list of layers' names, not a pattern.")
    found: set[str] = set()
    for module in modules:
        match = _MODULE.fullmatch(module)
        if match is None:
            raise AdapterError(
                f"{folder} has tensors of {module}, which is no layer of GPT-2", "Is it GPT-2's adapter?"
            )
        found.add(match[1])
    for target in named:
        if not any(layer == target or layer.endswith(f".{target}") for layer in found):
            raise AdapterError(f"{folder} names the target {target} but has no tensors for it", "Is it whole?")
    for layer in sorted(found):
        if not any(layer == target or layer.endswith(f".{target}") for target in named):
            raise AdapterError(f"{folder} has tensors of {layer}, which target_modules does not name", "Is it whole?")
    return tuple(sorted(found))
