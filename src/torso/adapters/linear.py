"""A frozen linear layer with a trainable low-rank path.

LoRA: y = x Wᵀ + b + s (x Aᵀ) Bᵀ. DoRA: y = c ⊙ (x Wᵀ + s (x Aᵀ) Bᵀ) + b with c = m / ‖W + s B A‖ by output row, the
norm detached. Adapters are float32 whatever the base computes in. Shapes: x [..., in], W [out, in], A [R, in],
B [out, R], m and c [out].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torso import randomness
from torso.adapters.config import AdapterConfig
from torso.adapters.functional import RowScale, adapted_linear
from torso.errors import AdapterError

CANCELLATION = 0.1
"""Below this share of ‖W‖² + ‖sBA‖² the expanded norm has lost digits, and the row's sum is built densely."""


class AdaptedLinear(nn.Module):
    """Takes the place of an nn.Linear, freezes its parameters and keeps their names."""

    def __init__(self, base: nn.Linear, config: AdapterConfig, scaling: float, name: str, initial_a: Tensor) -> None:
        """`initial_a` is A [R, in] to begin with; `scaling` the factor of the low-rank product."""
        super().__init__()
        if base.bias is None:
            raise AdapterError(f"{name} has no bias", "Adapters are written for GPT-2's linear layers, which have one.")
        self.weight, self.bias = base.weight.requires_grad_(False), base.bias.requires_grad_(False)
        self.scaling, self._dropout, self._name = scaling, config.dropout, name
        device = base.weight.device
        self.lora_A = nn.Parameter(initial_a.to(device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, initial_a.shape[0], device=device))
        self.magnitude: nn.Parameter | None = None
        self._base: Tensor | None = None
        self._cached: tuple[tuple[int, ...], Tensor] | None = None
        if config.kind == "dora":
            # B is zero: the same sum as the weight's own norm, so that c starts as exactly 1
            self.magnitude = nn.Parameter(self._weight_norm_squared().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        flat = x.reshape(-1, x.shape[-1])
        mask = randomness.dropout_mask(flat, self._dropout, self._name) if self._dropout else None
        row_scale = None if self.magnitude is None else RowScale(self.magnitude, self.row_norm())
        y = adapted_linear(flat, self.weight, self.bias, self.lora_A, self.lora_B, self.scaling, row_scale, mask)
        return y.view(*x.shape[:-1], -1)

    @torch.no_grad()
    def row_norm(self) -> Tensor:
        """‖W + s B A‖ by output row, [out] float32; computed anew only when A or B changed."""
        versions = (self.lora_A._version, self.lora_B._version)
        if self._cached is None or self._cached[0] != versions:
            self._cached = (versions, self._norm_squared().sqrt())
        return self._cached[1]

    def forget_row_norm(self) -> None:
        """After A or B changed where it cannot be seen: under FSDP gathered parameters keep their version."""
        self._cached = None

    def _norm_squared(self) -> Tensor:
        """‖W‖² + 2s rowsum((W Aᵀ) ⊙ B) + s² rowsum((B (A Aᵀ)) ⊙ B), without ever building W + s B A."""
        a, b, weight = self.lora_A.float(), self.lora_B.float(), self.weight.float()
        alone = self._weight_norm_squared()
        cross = 2.0 * self.scaling * ((weight @ a.t()) * b).sum(dim=1)
        own = self.scaling**2 * ((b @ (a @ a.t())) * b).sum(dim=1)
        total = alone + cross + own
        lost = total <= CANCELLATION * (alone + own)
        if bool(lost.any()):
            dense = (weight[lost] + self.scaling * (b[lost] @ a)).square().sum(dim=1)
            # a row of zeros has no direction: c must not become 0 / 0
            total[lost] = dense.clamp_min(torch.finfo(torch.float32).tiny)
        return total

    @torch.no_grad()
    def _weight_norm_squared(self) -> Tensor:
        """‖W‖² by output row, [out] float32; the weight is frozen, so once is enough."""
        if self._base is None:
            self._base = self.weight.float().square().sum(dim=1)
        return self._base

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaptedLinear:
        """Moving the module to another device or dtype makes both norms stale."""
        self._base = self._cached = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def keep_out_of_compiled_code() -> None:
    """Row norms are looked up outside of what torch.compile makes, which would take a step's norms for constants."""
    outside: Any = torch.compiler.disable  # it has no types
    AdaptedLinear.row_norm = outside(AdaptedLinear.row_norm)  # type: ignore[method-assign]


def forget_row_norms(module: nn.Module) -> None:
    """Of all adapted layers within."""
    for child in module.modules():
        if isinstance(child, AdaptedLinear):
            child.forget_row_norm()
