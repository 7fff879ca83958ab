"""The meaning of peft's adapter_config.json: which settings Torso understands, and which must stand at rest."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.adapters.config import TARGETS, AdapterConfig, module_of
from torso.adapters.names import parameter_order
from torso.errors import AdapterError

_UNDERSTOOD = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "bias",
    "fan_in_fan_out",
    "target_modules",
    "use_dora",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
}
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
}
_GPT2 = "GPT2LMHeadModel"
_KEEP_THE_BASE = (True, False, None, "gaussian", "orthogonal")
"""Initialisations that leave the base's weights alone; others (PiSSA, OLoRA, …) change them."""
_HUGE = 1e300
"""JSON may hold whole numbers beyond any float, infinity and NaN."""
_MODULE = re.compile(r"h\.\d+\.(.+)")


def config_from(
    settings: Mapping[str, Any], modules: Sequence[str], folder: Path, num_blocks: int | None = None
) -> AdapterConfig:
    """The configuration of a folder whose tensors belong to `modules` ("h.2.attn.c_attn"). Raises AdapterError.

    With `num_blocks`, the model's, it is noticed too when the last blocks' tensors are missing.
    """
    _refuse_other_kinds(settings, folder)
    _refuse_unknown_settings(settings, folder)
    lora_rank, alpha = _rank(settings, "r", folder), float(_number(settings, "lora_alpha", folder))
    _check_targets(settings, modules, folder, num_blocks)
    ranks, alphas = (
        _patterns(settings, "rank_pattern", modules, folder),
        _patterns(settings, "alpha_pattern", modules, folder),
    )
    sizes = {m: (int(ranks.get(m, lora_rank)), float(alphas.get(m, alpha))) for m in modules}
    uniform = AdapterConfig(
        kind="dora" if _flag(settings, "use_dora", folder) else "lora",
        lora_rank=lora_rank,
        alpha=alpha,
        dropout=float(_number(settings, "lora_dropout", folder, 0.0)),
        rslora=_flag(settings, "use_rslora", folder),
        targets=tuple(sorted({target_of(module) for module in modules})),
    )
    blocks = {module.split(".")[1] for module in modules}
    alike = set(sizes.values()) == {(lora_rank, alpha)} and len(modules) == len(blocks) * len(uniform.targets)
    if alike and len(blocks) == (num_blocks or max(map(int, blocks)) + 1):
        return uniform
    return dataclasses.replace(uniform, modules=tuple(module_of(m, *sizes[m]) for m in parameter_order(modules)))


def target_of(module: str) -> str:
    """ "h.2.attn.c_attn" to "attn.c_attn"."""
    return module.split(".", 2)[2]


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
        "target_modules": list(config.sizes or config.targets),
        "fan_in_fan_out": True,
        "use_dora": config.kind == "dora",
        "use_rslora": config.rslora,
        "rank_pattern": {layer: lora_rank for layer, (lora_rank, _) in config.sizes.items()},
        "alpha_pattern": {layer: alpha for layer, (_, alpha) in config.sizes.items()},
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
    mapping = settings.get("auto_mapping")
    of_class = mapping.get("base_model_class") if isinstance(mapping, dict) else mapping
    if of_class not in (_GPT2, None):
        raise AdapterError(f"{folder} is of a {of_class!r}, by its auto_mapping", f"Only a {_GPT2}'s is read.")
    if settings.get("bias", "none") != "none":
        raise AdapterError(f"{folder} trains biases ({settings['bias']!r})", "Only bias none is read.")
    if settings.get("fan_in_fan_out") is not True:
        # peft corrects it before it saves, so that such a folder was edited, or is of another kind of model
        found = f"{folder} has fan_in_fan_out {settings.get('fan_in_fan_out')!r}"
        raise AdapterError(found, "GPT-2's adapters have true: set it if it is GPT-2's.")
    if settings.get("init_lora_weights", True) not in _KEEP_THE_BASE:
        found = f"{folder} was initialised by {settings['init_lora_weights']!r}, which changes the base's weights"
        raise AdapterError(found, "Convert it to a plain LoRA with peft first.")


def _refuse_unknown_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Whatever is not understood must be empty or off: null, false, an empty list or object."""
    known = _UNDERSTOOD | _WITHOUT_EFFECT | {"init_lora_weights"}
    active = [key for key in sorted(settings) if key not in known and settings[key] not in (None, False, {}, [], "")]
    if active:
        found = f"{folder} has {active[0]} = {settings[active[0]]!r}"
        raise AdapterError(found, "Torso has no such setting; what it does would be lost.")


def _number(settings: Mapping[str, Any], key: str, folder: Path, default: float | None = None) -> float:
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _HUGE:
        raise AdapterError(f"{folder} has {key} {value!r}", "Expected a number, as the adapter was trained with.")
    return value


def _flag(settings: Mapping[str, Any], key: str, folder: Path) -> bool:
    value = settings.get(key, False)
    if not isinstance(value, bool):
        raise AdapterError(f"{folder} has {key} {value!r}", "Expected true or false.")
    return value


def _rank(settings: Mapping[str, Any], key: str, folder: Path) -> int:
    value = _number(settings, key, folder)
    if value != int(value):
        raise AdapterError(f"{folder} has rank {value}", "Expected a whole number.")
    return int(value)


def _patterns(settings: Mapping[str, Any], key: str, modules: Sequence[str], folder: Path) -> dict[str, float]:
    """What rank_pattern or alpha_pattern says of each module: as in peft, the first expression that fits it."""
    patterns = settings.get(key) or {}
    if not isinstance(patterns, dict):
        raise AdapterError(f"{folder} has {key} {patterns!r}", "Expected an object from layers to numbers.")
    found: dict[str, float] = {}
    fitting: set[str] = set()
    for pattern in patterns:
        value = _rank(patterns, pattern, folder) if key == "rank_pattern" else _number(patterns, pattern, folder)
        expression = _compile(rf"(.*\.)?({pattern})$", key, folder)
        fits = [module for module in modules if expression.match(f"transformer.{module}")]
        fitting.update([pattern] if fits else [])
        found |= {module: value for module in fits if module not in found}
    if idle := sorted(patterns.keys() - fitting):
        raise AdapterError(f"{folder} has {key} for {idle[0]!r}, where it has no tensors", "Is it whole?")
    return found


def _compile(expression: str, key: str, folder: Path) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise AdapterError(f"{folder} has {key} {expression!r}: {error}", "Mend the expression.") from None


def _check_targets(settings: Mapping[str, Any], modules: Sequence[str], folder: Path, num_blocks: int | None) -> None:
    """Raise AdapterError unless there are tensors for just those layers that target_modules names."""
    named = settings.get("target_modules")
    is_list = isinstance(named, list) and all(isinstance(target, str) for target in named)
    if not is_list and not isinstance(named, str):
        raise AdapterError(f"{folder} has target_modules {named!r}", "Expected a list of layers' names, or a pattern.")
    for module in modules:
        match = _MODULE.fullmatch(module)
        if match is None or match[1] not in TARGETS:
            raise AdapterError(
                f"{folder} has tensors of {module}, which is no layer of GPT-2", "Is it GPT-2's adapter?"
            )
        if not _is_named(module, named, folder):
            raise AdapterError(f"{folder} has tensors of {module}, which target_modules does not name", "Is it whole?")
    last = num_blocks or max((int(module.split(".")[1]) for module in modules), default=0) + 1
    layers = [f"h.{block}.{target}" for block in range(last) for target in TARGETS]
    for target in named if isinstance(named, list) else [named]:
        fitting = [
            layer for layer in layers if _is_named(layer, [target] if isinstance(named, list) else named, folder)
        ]
        missing = [layer for layer in fitting if layer not in modules]
        if missing or not fitting:
            what = f"of {missing[0]}" if missing and fitting else "for it"
            raise AdapterError(f"{folder} names the target {target} but has no tensors {what}", "Is it whole?")


def _is_named(module: str, named: Any, folder: Path) -> bool:
    """As peft: a list's names fit whole or at the end after a dot; a pattern fits the whole name."""
    key = f"transformer.{module}"
    if isinstance(named, str):
        return named == "all-linear" or _compile(named, "target_modules", folder).fullmatch(key) is not None
    return any(key == target or key.endswith(f".{target}") for target in named)
