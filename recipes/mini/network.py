"""GPT-2 in its plainest form, with the parameter names of torso.model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONFIG = {"vocab_size": 4096, "n_positions": 512, "n_embd": 192, "n_layer": 6, "n_head": 3}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, mask: Tensor) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        parts = self.c_attn(x).view(batch, length, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        query, key, value = parts.reshape(3, batch * self.heads, length, size)
        mask = self.mask[:length, :length].to(query.dtype)
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=1 / math.sqrt(size))
        mixed = (torch.softmax(scores, -1) @ value).view(batch, self.heads, length, size)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mask: Tensor) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads, mask)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Network(nn.Module):
    """GPT-2 up to ln_f; the LM head is `wte.weight`."""

    def __init__(self) -> None:
        super().__init__()
        width, positions = CONFIG["n_embd"], CONFIG["n_positions"]
        mask = torch.full((positions, positions), -math.inf).triu(1)
        self.wte = nn.Embedding(CONFIG["vocab_size"], width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(width, CONFIG["n_head"], mask) for _ in range(CONFIG["n_layer"]))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[B, T] token ids to [B, T, C] hidden states."""
        x = self.wte(token_ids) + self.wpe.weight[: token_ids.shape[1]]
        for block in self.h:
            x = block(x)
        out: Tensor = self.ln_f(x)
        return out


def initialise(network: Network, seed: int) -> None:
    """GPT-2's own start: normal 0.02, less for what writes into the residual stream, zero biases."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            deviation = 0.02 / math.sqrt(2 * CONFIG["n_layer"]) if name.endswith("c_proj.weight") else 0.02
            nn.init.normal_(parameter, 0.0, deviation, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
