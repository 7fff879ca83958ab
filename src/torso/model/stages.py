"""The model in three stages. Parameter names are the whole model's, so the stages' states form a plain union.

B sequences, T tokens, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from torso.model.blocks import Block
from torso.model.cache import KeyValueCache
from torso.model.config import Cuts, GPT2Config
from torso.model.loss import target_loss
from torso.randomness import dropout


def _blocks(config: GPT2Config, layers: range) -> nn.ModuleDict:
    return nn.ModuleDict({str(layer): Block(config, layer) for layer in layers})


def _run(blocks: nn.ModuleDict, x: Tensor, cache: KeyValueCache | None) -> Tensor:
    for block in blocks.values():
        x = block(x, cache)
    return x


class Head(nn.Module):
    """Embeddings and the first blocks; the only stage that sees token ids on the way in."""

    def __init__(self, config: GPT2Config, cuts: Cuts) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = _blocks(config, cuts.head)
        self._p = config.embd_pdrop

    def forward(
        self, token_ids: Tensor, *, cache: KeyValueCache | None = None, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Token ids [B, T] → activations [B, T, C]. With a cache, `lengths` says what of each row is no padding."""
        batch, tokens = token_ids.shape
        positions = torch.arange(tokens, device=token_ids.device)[None, :]
        if cache is not None:
            positions = cache.extend(lengths or [tokens] * batch, tokens, token_ids.device)
        # positions of padding may lie past the last one; what is computed there is never looked at
        embedded = self.wte(token_ids) + self.wpe(positions.clamp(max=self.wpe.num_embeddings - 1))
        return _run(self.h, dropout(embedded, self._p, "embd"), cache)


class Body(nn.Module):
    """The middle blocks; sees activations only."""

    def __init__(self, config: GPT2Config, cuts: Cuts) -> None:
        super().__init__()
        self.h = _blocks(config, cuts.body)

    def forward(self, x: Tensor, *, cache: KeyValueCache | None = None, lengths: Sequence[int] | None = None) -> Tensor:
        """[B, T, C] → [B, T, C]."""
        if cache is not None:
            cache.extend(lengths or [x.shape[1]] * x.shape[0], x.shape[1], x.device)
        return _run(self.h, x, cache)


class Tail(nn.Module):
    """The last blocks, the final norm and the LM head (tied to the embeddings)."""

    def __init__(self, config: GPT2Config, cuts: Cuts) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = _blocks(config, cuts.tail)
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, x: Tensor, *, cache: KeyValueCache | None = None, lengths: Sequence[int] | None = None) -> Tensor:
        """Activations [B, T, C] → hidden states [B, T, C] after the final norm."""
        if cache is not None:
            cache.extend(lengths or [x.shape[1]] * x.shape[0], x.shape[1], x.device)
        hidden: Tensor = self.ln_f(_run(self.h, x, cache))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[…, C] → [… , V]."""
        return functional.linear(hidden, self.wte.weight)


class GPT2(nn.Module):
    """The whole model with tied embeddings, for full training and for comparison."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = _blocks(config, range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def hidden(self, token_ids: Tensor) -> Tensor:
        """Token ids [B, T] → hidden states [B, T, C] after the final norm."""
        positions = torch.arange(token_ids.shape[1], device=token_ids.device)
        embedded = dropout(self.wte(token_ids) + self.wpe(positions), self.config.embd_pdrop, "embd")
        hidden: Tensor = self.ln_f(_run(self.h, embedded, None))
        return hidden

    def forward(self, token_ids: Tensor) -> Tensor:
        """Token ids [B, T] → logits [B, T, V]."""
        return functional.linear(self.hidden(token_ids), self.wte.weight)


class GPT2WithLoss(GPT2):
    """The whole model as a module whose call gives the loss: what a strategy is applied to."""

    def forward(self, token_ids: Tensor, target_mask: Tensor | None = None) -> Tensor:
        """Token ids [B, T], mask of targets [B, T] → the sum of the targets' losses (see `target_loss`)."""
        assert target_mask is not None
        return target_loss(self.hidden(token_ids), self.wte.weight, token_ids, target_mask)
