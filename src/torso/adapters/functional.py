"""The adapted linear layer's forward and backward, written out by hand.

Kept for the backward pass: x, u = x Aᵀ, and for DoRA its own output y, which the next layer often keeps anyway.
With g = dY (LoRA) or dY ⊙ c (DoRA): dB = s gᵀ u, dA = s (g B)ᵀ x, dX = g W + s (g B) A, dm = Σ dY ⊙ (y - b) / m.

Two things hold for every dtype. With B = 0 and c = 1 the output has the base's very bits: the base's product is
the same call, and what is added is exactly zero. And c enters as c - 1, which keeps its digits where c itself,
rounded to bf16, would be 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class RowScale:
    """What DoRA scales each output by: c = magnitude / row_norm, both [out] float32."""

    magnitude: Tensor
    row_norm: Tensor


def adapted_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scaling: float,
    row_scale: RowScale | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """x [N, in] → [N, out].

    `mask` [N, in] holds dropout's factors for the adapter's input. As in peft, it falls on all that the adapter adds
    to the base's output: with DoRA y = x Wᵀ + b + (c - 1) x̃ Wᵀ + c s x̃ Aᵀ Bᵀ, where x̃ = x ⊙ mask.
    """
    adapter = (weight, bias, lora_a, lora_b, scaling)
    if row_scale is None:
        return _lora(x, *adapter, mask)
    if mask is None:
        return _dora(x, *adapter, row_scale.magnitude, row_scale.row_norm)
    return _dora_with_dropout(x, *adapter, row_scale.magnitude, row_scale.row_norm, mask)


def _base(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The call that nn.Linear makes for matrices, so that the bits are its."""
    return torch.addmm(bias, x, weight.t())


def _adapter_gradients(
    g: Tensor, dropped: Tensor, u: Tensor, a: Tensor, b: Tensor, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """h = s g B [N, R], dA and dB in the adapters' dtype, for the gradient g [N, out] of the low-rank product."""
    h = (g @ b.to(g.dtype)).mul_(scaling)
    return h, (h.t() @ dropped).to(a.dtype), (g.t() @ u).to(b.dtype).mul_(scaling)


class _LoRALinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        a: Tensor,
        b: Tensor,
        scaling: float,
        mask: Tensor | None,
    ) -> Tensor:
        u = (x if mask is None else x * mask) @ a.to(x.dtype).t()
        ctx.scaling = scaling
        ctx.save_for_backward(x, u, weight, a, b, mask)
        return _base(x, weight, bias).addmm_(u, b.to(x.dtype).t(), alpha=scaling)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, u, weight, a, b, mask = ctx.saved_tensors
        h, grad_a, grad_b = _adapter_gradients(grad, x if mask is None else x * mask, u, a, b, ctx.scaling)
        grad_x = None
        if ctx.needs_input_grad[0]:
            low = a.to(grad.dtype)
            grad_x = grad @ weight
            grad_x = grad_x.addmm_(h, low) if mask is None else grad_x.addcmul_(h @ low, mask)
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
        norm: Tensor,
    ) -> Tensor:
        u = x @ a.to(x.dtype).t()
        y = _base(x, weight, bias).addmm_(u, b.to(x.dtype).t(), alpha=scaling)
        e = (magnitude / norm - 1.0).to(x.dtype)
        # the bias is in the product's bits already, and is not to be scaled: take its share out again
        y = y.addcmul_(y, e).addcmul_(bias, e, value=-1.0)
        ctx.scaling = scaling
        ctx.save_for_backward(x, u, weight, bias, a, b, magnitude, e, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, u, weight, bias, a, b, magnitude, e, y = ctx.saved_tensors
        g = torch.addcmul(grad, grad, e)
        h, grad_a, grad_b = _adapter_gradients(g, x, u, a, b, ctx.scaling)
        along = _sum(grad * y, magnitude) - bias.to(magnitude.dtype) * _sum(grad, magnitude)
        # a magnitude of 0 silences its row for good, as its gradient's only finite value is 0
        grad_magnitude = torch.where(magnitude == 0.0, 0.0, along / magnitude)
        grad_x = (g @ weight).addmm_(h, a.to(g.dtype)) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad_a, grad_b, None, grad_magnitude, None


class _DoRADropoutLinear(torch.autograd.Function):
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
        norm: Tensor,
        mask: Tensor,
    ) -> Tensor:
        dropped = x * mask
        u = dropped @ a.to(x.dtype).t()
        low = b.to(x.dtype).t()
        z = (dropped @ weight.t()).addmm_(u, low, alpha=scaling)
        e = (magnitude / norm - 1.0).to(x.dtype)
        ctx.scaling = scaling
        ctx.save_for_backward(x, u, weight, a, b, norm, e, z, mask)
        return _base(x, weight, bias).addmm_(u, low, alpha=scaling).addcmul_(z, e)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, u, weight, a, b, norm, e, z, mask = ctx.saved_tensors
        excess = grad * e
        h, grad_a, grad_b = _adapter_gradients(grad + excess, x * mask, u, a, b, ctx.scaling)
        grad_magnitude = _sum(grad * z, norm) / norm
        grad_x = None
        if ctx.needs_input_grad[0]:
            through = (excess @ weight).addmm_(h, a.to(grad.dtype))
            grad_x = (grad @ weight).addcmul_(through, mask)
        return grad_x, None, None, grad_a, grad_b, None, grad_magnitude, None, None


def _sum(values: Tensor, like: Tensor) -> Tensor:
    """Sum over rows [N, out] → [out] in the precision of `like`."""
    return values.sum(dim=0, dtype=like.dtype)


_lora: Callable[..., Tensor] = _LoRALinear.apply
_dora: Callable[..., Tensor] = _DoRALinear.apply
_dora_with_dropout: Callable[..., Tensor] = _DoRADropoutLinear.apply
