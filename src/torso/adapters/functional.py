"""The adapted linear layer's forward and backward, written out by hand.

Kept for the backward pass: x, u = x Aᵀ, and for DoRA z = y - b. With g = dY (LoRA) or dY ⊙ c (DoRA):
dB = s gᵀ u, dA = s (g B)ᵀ x, dX = g W + s (g B) A, dm = Σ dY ⊙ z / m.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def adapted_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scaling: float,
    row_scale: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
) -> Tensor:
    """x [N, in] → [N, out]. `row_scale` is DoRA's (magnitude, row norm); `mask` [N, in] drops the low-rank input."""
    if row_scale is None:
        y: Tensor = _LoRALinear.apply(x, weight, bias, lora_a, lora_b, scaling, mask)  # type: ignore[no-untyped-call]
    else:
        y = _DoRALinear.apply(x, weight, bias, lora_a, lora_b, scaling, *row_scale, mask)  # type: ignore[no-untyped-call]
    return y


def _low_rank(x: Tensor, mask: Tensor | None, lora_a: Tensor) -> Tensor:
    """u = (x ⊙ mask) Aᵀ in x's dtype, [N, R]."""
    return (x if mask is None else x * mask) @ lora_a.to(x.dtype).t()


def _backward(ctx: Any, g: Tensor, saved: tuple[Tensor, ...], mask: Tensor | None) -> tuple[Tensor | None, ...]:
    """dX, dA, dB for the gradient g [N, out] before the row scale."""
    x, u, weight, lora_a, lora_b = saved
    h = (g @ lora_b.to(g.dtype)) * ctx.scaling  # [N, R]
    grad_b = (g.t() @ u).float() * ctx.scaling
    grad_a = (h.t() @ (x if mask is None else x * mask)).float()
    if not ctx.needs_input_grad[0]:
        return None, grad_a, grad_b
    through = h @ lora_a.to(g.dtype)
    return (g @ weight).add_(through if mask is None else through.mul_(mask)), grad_a, grad_b


class _LoRALinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, a: Tensor, b: Tensor, scaling: float, mask: Tensor | None
    ) -> Tensor:
        u = _low_rank(x, mask, a)
        ctx.scaling = scaling
        ctx.save_for_backward(x, u, weight, a, b, mask)
        # addmm_ with a zero product leaves every bit of the base's output
        return torch.addmm(bias, x, weight.t()).addmm_(u, b.to(x.dtype).t(), alpha=scaling)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, mask = ctx.saved_tensors
        grad_x, grad_a, grad_b = _backward(ctx, grad, tuple(saved), mask)
        return grad_x, None, None, grad_a, grad_b, None, None


class _DoRALinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        a: Tensor,
        b: Tensor,
        scaling: float,
        magnitude: Tensor,
        row_norm: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        u = _low_rank(x, mask, a)
        c = magnitude / row_norm
        base = x @ weight.t()
        low_rank = u @ b.to(x.dtype).t()
        # with dropout only the low-rank path is dropped, so both are scaled as one sum all the same
        z = base.add_(low_rank, alpha=scaling).mul_(c.to(x.dtype))
        ctx.scaling = scaling
        ctx.save_for_backward(x, u, weight, a, b, z, c, magnitude, mask)
        return z + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, z, c, magnitude, mask = ctx.saved_tensors
        grad_x, grad_a, grad_b = _backward(ctx, grad * c.to(grad.dtype), tuple(saved), mask)
        grad_magnitude = (grad * z).float().sum(dim=0) / magnitude
        return grad_x, None, None, grad_a, grad_b, None, grad_magnitude, None, None
