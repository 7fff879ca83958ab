"""Which adapter, of which size, on which linear layers."""

from __future__ import annotations

import math
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

    @property
    def scaling(self) -> float:
        """Factor of the low-rank product."""
        return self.alpha / (math.sqrt(self.lora_rank) if self.rslora else self.lora_rank)


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
