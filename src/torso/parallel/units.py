"""What is done to a module's units from outside, whatever the strategy: recompute, compile, compute in less."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torso import randomness
from torso.errors import ConfigError
from torso.randomness import dropout_key, dropout_scope


def recompute_activations(units: Sequence[nn.Module]) -> None:
    """Keep a unit's input only, and compute the unit once more in the backward pass."""
    for unit in units:
        unit.forward = _recomputing(unit.forward)


def compile_units(units: Sequence[nn.Module]) -> None:
    """torch.compile for each unit, for batches of any size; dropout's masks stay outside. Raises ConfigError."""
    check_compiler()
    randomness.keep_out_of_compiled_code()
    for unit in units:
        unit.forward = torch.compile(unit.forward, dynamic=True)


def check_compiler() -> None:
    """Raise ConfigError when torch.compile would find no C++ compiler: it looks for $CXX, or the system's own."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"compile is given, and there is no C++ compiler {compiler!r}",
            "Install one, name it in the variable CXX, or leave --compile out.",
        )


def compute_in(dtype: torch.dtype, module: nn.Module, units: Sequence[nn.Module]) -> None:
    """Each unit, and the module around them, sees its parameters in `dtype` while it runs; gradients come back as they
    were. The same as FSDP's mixed precision does with what it gathers."""
    inside = {id(child) for unit in units for child in unit.modules()}
    around = [child for child in module.modules() if id(child) not in inside]
    for part, members in [*((unit, list(unit.modules())) for unit in units), (module, around)]:
        part.forward = _casting(part.forward, members, dtype)


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        key = dropout_key()  # recomputing may happen on another thread, outside of its scope
        again = lambda: (contextlib.nullcontext(), dropout_scope(key))  # noqa: E731
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=again)

    return call


def _casting(forward: Callable[..., Any], members: Sequence[nn.Module], dtype: torch.dtype) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        with _cast(members, dtype):
            return forward(*inputs)

    return call


@contextlib.contextmanager
def _cast(members: Sequence[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """A parameter that several members share is cast once."""
    cast: dict[int, Tensor] = {}
    before = [(member, dict(member._parameters)) for member in members]
    try:
        for member, parameters in before:
            for name, parameter in parameters.items():
                if parameter is not None and parameter.is_floating_point():
                    if id(parameter) not in cast:
                        cast[id(parameter)] = parameter.to(dtype)
                    member._parameters[name] = cast[id(parameter)]  # type: ignore[assignment]
        yield
    finally:
        for member, parameters in before:
            member._parameters.update(parameters)
