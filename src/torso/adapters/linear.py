"""A frozen linear layer with a trainable low-rank path.

LoRA: y = x Wᵀ + b + s (x Aᵀ) Bᵀ. DoRA: y = c ⊙ (x Wᵀ + s (x Aᵀ) Bᵀ) + b with c = m / ‖W + s B A‖ by output row, the
norm detached. Adapters are float32 whatever the base computes in. Shapes: x [..., in], W [out, in], A [R, in],
B [out, R], m and c [out].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torso.adapters.config import AdapterConfig
from torso.adapters.functional import adapted_linear
from torso.randomness import dropout_mask

CANCELLATION = 1e-3
"""Below this share of ‖W‖² + ‖sBA‖² the expanded norm has lost its digits, and the sum is built densely."""


class AdaptedLinear(nn.Module):
    """Takes the place of an nn.Linear and keeps its parameters' names."""

    def __init__(self, base: nn.Linear, config: AdapterConfig, name: str, initial_a: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.scaling, self._dropout, self._name = config.scaling, config.dropout, name
        device = base.weight.device
        self.lora_A = nn.Parameter(initial_a.to(device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, config.lora_rank, device=device))
        self.magnitude: nn.Parameter | None = None
        self._cached: tuple[tuple[int, ...], Tensor] | None = None
        if config.kind == "dora":
            with torch.no_grad():
                self._weight_norm_squared = self.weight.float().square().sum(dim=1)
                self.magnitude = nn.Parameter(self._weight_norm_squared.sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        flat = x.reshape(-1, x.shape[-1])
        mask = dropout_mask(flat, self._dropout, self._name)
        y = adapted_linear(
            flat, self.weight, self.bias, self.lora_A, self.lora_B, self.scaling, self._row_scale(), mask
        )
        return y.view(*x.shape[:-1], -1)

    def _row_scale(self) -> tuple[Tensor, Tensor] | None:
        """DoRA's magnitude and row norms; None for LoRA."""
        return None if self.magnitude is None else (self.magnitude, self.row_norm())

    @torch.no_grad()
    def row_norm(self) -> Tensor:
        """‖W + s B A‖ by output row, [out] float32; computed anew only when A or B changed."""
        versions = (self.lora_A._version, self.lora_B._version)
        if self._cached is None or self._cached[0] != versions:
            self._cached = (versions, self._norm_squared().sqrt())
        return self._cached[1]

    def _norm_squared(self) -> Tensor:
        """‖W‖² + 2s rowsum((W Aᵀ) ⊙ B) + s² rowsum((B (A Aᵀ)) ⊙ B), without ever building W + s B A."""
        a, b = self.lora_A, self.lora_B
        weight = self.weight.float()
        cross = 2.0 * self.scaling * ((weight @ a.t()) * b).sum(dim=1)
        own = self.scaling**2 * ((b @ (a @ a.t())) * b).sum(dim=1)
        total: Tensor = self._weight_norm_squared + cross + own
        lost = total < CANCELLATION * (self._weight_norm_squared + own)
        if bool(lost.any()):
            dense = (weight[lost] + self.scaling * (b[lost] @ a)).square().sum(dim=1)
            total[lost] = dense.clamp_min(torch.finfo(torch.float32).tiny)
        return total
