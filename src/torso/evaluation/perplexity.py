"""Perplexity over target tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torso.evaluation.model import CachedModel
from torso.model.loss import target_loss


class Batch(Protocol):
    """Sequences padded on the right."""

    @property
    def token_ids(self) -> Tensor:
        """[B, T]."""

    @property
    def lengths(self) -> Tensor:
        """[B]."""

    @property
    def target_mask(self) -> Tensor:
        """[B, T] bool."""


@dataclass(frozen=True)
class Perplexity:
    """exp(loss_sum / target_tokens)."""

    value: float
    loss_sum: float
    target_tokens: int


@torch.no_grad()
def perplexity(model: CachedModel, batches: Iterable[Batch]) -> Perplexity:
    """Over all target tokens of the batches; infinite when the mean loss is too large, and nan without targets."""
    loss_sum, tokens = 0.0, 0
    for batch in batches:
        hidden = model.hidden(batch.token_ids, batch.lengths.tolist())
        ids, mask = batch.token_ids.to(model.device), batch.target_mask.to(model.device)
        loss_sum += float(target_loss(hidden, model.tail.wte.weight, ids, mask))
        tokens += int(mask.sum())
    if tokens == 0:
        return Perplexity(math.nan, 0.0, 0)
    mean = loss_sum / tokens
    return Perplexity(math.exp(mean) if mean < 700 else math.inf, loss_sum, tokens)
