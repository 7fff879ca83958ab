"""The one global order of parameters, in which norms are added up."""

from __future__ import annotations

import re
from collections.abc import Iterable

_EDGES = ("wte.", "wpe.", "h.", "ln_f.")
_MODULES = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
_LEAVES = ("weight", "bias", "lora_A", "lora_B", "magnitude")
_PATTERN = re.compile(r"^h\.(\d+)\.(.+)\.([^.]+)$")


def parameter_order(names: Iterable[str]) -> list[str]:
    """The names sorted as the model runs: embeddings, blocks by number, modules, A before B before magnitude."""
    return sorted(names, key=_key)


def _key(name: str) -> tuple[int, int, int, int, str]:
    edge = next((i for i, start in enumerate(_EDGES) if name.startswith(start)), len(_EDGES))
    match = _PATTERN.match(name)
    if match is None:
        return (edge, 0, 0, _index(_LEAVES, name.rpartition(".")[2]), name)
    layer, module, leaf = match.groups()
    return (edge, int(layer), _index(_MODULES, module), _index(_LEAVES, leaf), name)


def _index(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)
