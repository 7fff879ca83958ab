"""Putting adapters into a module, and their initial values."""

from __future__ import annotations

import math

from torch import Tensor, nn

from torso.adapters.config import AdapterConfig
from torso.adapters.linear import AdaptedLinear
from torso.adapters.names import parameter_order
from torso.errors import AdapterError
from torso.randomness import uniform

LEAVES = ("lora_A", "lora_B", "magnitude")


def inject(module: nn.Module, config: AdapterConfig, seed: int) -> dict[str, nn.Parameter]:
    """Replace the targeted linear layers; returns the trainable parameters by global name, in global order.

    Raises AdapterError when adapters are there already or, in a module with linear layers, when no target is found; a
    configuration that names its layers one by one may name none of this module's.
    """
    layers = list(module.named_modules())
    if any(isinstance(child, AdaptedLinear) for _, child in layers):
        raise AdapterError("the module has adapters already", "Inject them once.")
    linear = {name: child for name, child in layers if isinstance(child, nn.Linear)}
    sizes = {name: size for name in linear if (size := config.size(name)) is not None}
    if linear and not sizes and not config.modules:
        names = ", ".join(config.targets)
        raise AdapterError(f"none of the module's {len(linear)} linear layers is called {names}", "Give other targets.")
    for name, (lora_rank, scaling) in sizes.items():
        initial = initial_a(f"{name}.lora_A", lora_rank, linear[name].in_features, seed)
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, AdaptedLinear(linear[name], config, scaling, name, initial))
    trainable = {n: p for n, p in module.named_parameters() if n.rpartition(".")[2] in LEAVES}
    return {name: trainable[name] for name in parameter_order(trainable)}


def initial_a(name: str, lora_rank: int, in_features: int, seed: int) -> Tensor:
    """A's initial value [R, in], Kaiming uniform with a = sqrt 5, i.e. uniform within ±1 / sqrt(in)."""
    bound = 1.0 / math.sqrt(in_features)
    return ((uniform((lora_rank, in_features), "initial adapter", seed, name) * 2.0 - 1.0) * bound).float()


def num_parameters(parameters: dict[str, nn.Parameter]) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in parameters.values())
