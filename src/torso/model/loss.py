"""The loss at target tokens only: the LM head is the largest single cost of a small GPT-2.

Rows without a target are left out before the LM head, and logits exist for one chunk of rows at a time. The gradient
is written out by hand (softmax minus one-hot) in the forward pass, so no logits are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ROWS = 256
"""Rows whose logits exist at the same time; part of the arithmetic, for it decides shapes."""


def target_loss(hidden: Tensor, wte: Tensor, token_ids: Tensor, target_mask: Tensor) -> Tensor:
    """The SUM of cross entropies of the tokens that `target_mask` marks, a float32 scalar.

    `hidden` [B, T, C] after the final norm, `wte` [V, C], `token_ids` [B, T], `target_mask` [B, T] bool; token t is
    predicted from position t - 1, so the first column cannot be a target. 0 when nothing is marked.
    """
    rows, columns = target_mask[:, 1:].nonzero(as_tuple=True)
    loss: Tensor = _SummedCrossEntropy.apply(hidden[rows, columns], wte, token_ids[rows, columns + 1])  # type: ignore[no-untyped-call]
    return loss


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum over rows of -log softmax(h Wᵀ)[target]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, wte: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_wte = torch.zeros_like(wte) if wte.requires_grad else None
        for start in range(0, hidden.shape[0], CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            loss, grad_logits = _chunk(hidden[chunk], wte, targets[chunk])
            total += loss
            grad_hidden[chunk] = grad_logits @ wte
            if grad_wte is not None:
                grad_wte.addmm_(grad_logits.t(), hidden[chunk])
        ctx.save_for_backward(grad_hidden, grad_wte)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        grad_hidden, grad_wte = ctx.saved_tensors
        scaled_wte = None if grad_wte is None else (grad_wte * grad).to(grad_wte.dtype)
        return (grad_hidden * grad).to(grad_hidden.dtype), scaled_wte, None


def _chunk(hidden: Tensor, wte: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Loss sum of some rows and its gradient at their logits [rows, V] (in hidden's dtype)."""
    logits = (hidden @ wte.t()).float()
    picked = logits.gather(1, targets[:, None])
    log_sums = logits.logsumexp(dim=1, keepdim=True)
    gradient = (logits - log_sums).exp_()
    gradient.scatter_add_(1, targets[:, None], torch.full_like(picked, -1.0))
    return (log_sums - picked).sum(), gradient.to(hidden.dtype)
