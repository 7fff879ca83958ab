"""Which adapter, of which size, on which linear layers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from torso.errors import AdapterError

TARGETS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
_ALIASES = {
    "c_attn": ("attn.c_attn",),
    "c_fc": ("mlp.c_fc",),
    "c_proj": ("attn.c_proj", "mlp.c_proj"),
    "all": TARGETS,
}
_ENTRY = re.compile(rf"(h\.\d+\.(?:{'|'.join(map(re.escape, TARGETS))}))=(\d{{1,6}}):(.+)")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """LoRA (Hu et al. 2021), rsLoRA (Kalajdzievski 2023), DoRA (Liu et al. 2024)."""

    kind: Literal["lora", "dora"] = "lora"
    """LoRA adds a low-rank product; DoRA also trains the length of each output's weight vector."""
    lora_rank: int = 8
    """Rank R of the product."""
    alpha: float = 16.0
    """Numerator of the scaling."""
    dropout: float = 0.0
    """Dropout of the low-rank path's input."""
    rslora: bool = False
    """Scale by alpha / sqrt(R) in place of alpha / R."""
    targets: tuple[str, ...] = TARGETS
    """Linear layers: attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj; c_proj alone means both."""
    modules: tuple[str, ...] = ()
    """Exactly these layers, each `h.2.attn.c_attn=RANK:ALPHA`. Empty: the targets of every block, alike."""

    def __post_init__(self) -> None:
        if self.kind not in ("lora", "dora"):
            raise AdapterError(f"adapter is {self.kind!r}", "Choose lora or dora.")
        if self.lora_rank < 1:
            raise AdapterError(f"lora_rank is {self.lora_rank}", "Give 1 or more.")
        if not (math.isfinite(self.alpha) and self.alpha > 0.0):
            raise AdapterError(f"alpha is {self.alpha}", "Give a number above 0.")
        if not 0.0 <= self.dropout < 1.0:
            raise AdapterError(f"adapter dropout is {self.dropout}", "Give a number from 0 up to, not including, 1.")
        object.__setattr__(self, "targets", _canonical(self.targets))
        layers = [_parse(module)[0] for module in self.modules]
        if twice := sorted({layer for layer in layers if layers.count(layer) > 1}):
            raise AdapterError(f"modules has {twice[0]} twice", "Name each layer once.")

    @property
    def sizes(self) -> dict[str, tuple[int, float]]:
        """Rank and alpha by layer (`h.2.attn.c_attn`), where `modules` names them."""
        return dict(_parse(module) for module in self.modules)

    @property
    def scaling(self) -> float:
        """Factor of the low-rank product, where all layers are alike."""
        return self._scaling(self.lora_rank, self.alpha)

    def size(self, layer: str) -> tuple[int, float] | None:
        """Rank, and factor of the low-rank product, of a layer's adapter; None where it has none."""
        if self.modules:
            found = self.sizes.get(layer)
        else:
            adapted = f".{layer}".endswith(tuple(f".{target}" for target in self.targets))
            found = (self.lora_rank, self.alpha) if adapted else None
        if found is None:
            return None
        lora_rank, alpha = found
        return lora_rank, self._scaling(lora_rank, alpha)

    def _scaling(self, lora_rank: int, alpha: float) -> float:
        return alpha / (math.sqrt(lora_rank) if self.rslora else lora_rank)


def module_of(layer: str, lora_rank: int, alpha: float) -> str:
    """An entry of `AdapterConfig.modules`."""
    return f"{layer}={lora_rank}:{alpha!r}"


def _parse(module: str) -> tuple[str, tuple[int, float]]:
    """An entry's layer, rank and alpha; raises AdapterError."""
    match = _ENTRY.fullmatch(module)
    try:
        size = (int(match[2]), float(match[3])) if match else (0, 0.0)
    except ValueError:
        size = (0, 0.0)
    if match is None or size[0] < 1 or not (math.isfinite(size[1]) and size[1] > 0.0):
        raise AdapterError(f"modules has {module!r}", "Write h.2.attn.c_attn=8:16.0, a layer's rank and alpha.")
    return match[1], size


def _canonical(targets: tuple[str, ...]) -> tuple[str, ...]:
    """Full names in canonical order; raises AdapterError for unknown ones and for none."""
    full: set[str] = set()
    for target in targets:
        names = _ALIASES.get(target, (target,))
        if not set(names) <= set(TARGETS):
            raise AdapterError(f"no linear layer is called {target!r}", f"Choose among {', '.join(TARGETS)}.")
        full.update(names)
    if not full:
        raise AdapterError("no target layers are given", f"Choose among {', '.join(TARGETS)}.")
    return tuple(name for name in TARGETS if name in full)
