"""A transformer block of GPT-2 (Radford et al. 2019). B sequences, T tokens, C width, H heads, D head width."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from torso.model.cache import KeyValueCache
from torso.model.config import GPT2Config
from torso.randomness import dropout, dropout_active

ATTENTION = "scaled_dot_product_attention, plain with dropout"
"""Which attention is used: part of the arithmetic that a run's bits depend on."""


class Attention(nn.Module):
    """Causal self-attention over all heads."""

    def __init__(self, config: GPT2Config, index: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self._num_heads, self._index = config.n_head, index
        self._attn_p, self._resid_p = config.attn_pdrop, config.resid_pdrop
        # names that are not put together in forward: compiled code is the same for all blocks then
        self._weights_site, self._resid_site = f"h.{index}.attn.weights", f"h.{index}.attn.resid"

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """[B, T, C] → [B, T, C]."""
        batch, tokens, width = x.shape
        heads = (batch, tokens, self._num_heads, width // self._num_heads)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        attend = self._attend if cache is None else partial(cache.attend, self._index)
        mixed = attend(query, key, value)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
        return dropout(self.c_proj(mixed), self._resid_p, self._resid_site)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, H, T, D]; written out when weights are dropped, for the fused kernel cannot be seeded by counter."""
        if self._attn_p == 0.0 or not dropout_active():
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(query.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        mixed: Tensor = dropout(weights, self._attn_p, self._weights_site) @ value
        return mixed


class MLP(nn.Module):
    """Two linear layers with GELU (tanh form) between."""

    def __init__(self, config: GPT2Config, index: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.inner)
        self.c_proj = nn.Linear(config.inner, config.n_embd)
        self._p, self._site = config.resid_pdrop, f"h.{index}.mlp.resid"

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] → [B, T, C]."""
        return dropout(self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh")), self._p, self._site)


class Block(nn.Module):
    """Attention and MLP, each after a layer norm, each added to the residual."""

    def __init__(self, config: GPT2Config, index: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, index)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config, index)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """[B, T, C] → [B, T, C]."""
        x = x + self.attn(self.ln_1(x), cache)
        output: Tensor = x + self.mlp(self.ln_2(x))
        return output
