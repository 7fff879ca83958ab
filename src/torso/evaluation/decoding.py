"""Greedy decoding, batched, with a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torso.errors import DataError
from torso.evaluation.model import CachedModel

MAX_NEW_TOKENS = 64


@torch.no_grad()
def greedy(
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    end_id: int,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_size: int = 64,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """The most likely next token again and again, until the end token (left out) or `max_new_tokens`.

    Prompts of like length share a batch; the outputs come in the prompts' order. Ties go to the lower token id.
    `on_progress` is told how many prompts are done. DataError for an empty prompt, and for one that leaves too few
    positions for its output.
    """
    _check(prompts, max_new_tokens, model.head.wpe.num_embeddings)
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        for i, tokens in zip(
            chosen, _greedy_batch(model, [prompts[i] for i in chosen], end_id, max_new_tokens), strict=True
        ):
            outputs[i] = tokens
        on_progress(min(len(order), start + batch_size))
    return outputs


def _check(prompts: Sequence[Sequence[int]], max_new_tokens: int, positions: int) -> None:
    for number, prompt in enumerate(prompts, start=1):
        if not prompt:
            raise DataError(f"prompt {number} is empty", "Give at least the end token.")
        if len(prompt) + max_new_tokens > positions:
            raise DataError(
                f"prompt {number} has {len(prompt)} tokens; with {max_new_tokens} new ones it does not fit into the"
                f" model's {positions} positions",
                "Shorten it, or decode fewer new tokens.",
            )


def _greedy_batch(
    model: CachedModel, prompts: Sequence[Sequence[int]], end_id: int, max_new_tokens: int
) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    decoding = model.start(len(prompts))
    try:
        logits = decoding.forward(_padded(prompts, end_id), [len(p) for p in prompts])
        for _ in range(max_new_tokens):
            tokens = logits.float().argmax(dim=1).tolist()
            rows = [row for row, token in enumerate(tokens) if token != end_id]
            alive = [alive[row] for row in rows]
            for sequence, row in zip(alive, rows, strict=True):
                outputs[sequence].append(tokens[row])
            if not alive or len(outputs[alive[0]]) == max_new_tokens:
                break
            chunk = torch.tensor([[tokens[row]] for row in rows])
            logits = decoding.forward(chunk, [1] * len(rows), rows if len(rows) < len(tokens) else None)
    finally:
        decoding.close()
    return outputs


def _padded(prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """[B, T], padded on the right."""
    longest = max(map(len, prompts))
    return torch.tensor([[*prompt, *[pad_id] * (longest - len(prompt))] for prompt in prompts])
