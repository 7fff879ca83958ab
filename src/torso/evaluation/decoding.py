"""From prompts to tokens: greedy, beams or sampling, in batches with a key-value cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torso.errors import ConfigError, DataError
from torso.evaluation.beam import beam_search
from torso.evaluation.model import CachedModel, padded
from torso.evaluation.sampling import Sampler

MAX_NEW_TOKENS = 64
MOST_LENGTH_PENALTY = 10.0
"""Beyond it lengths to its power leave float32."""


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """How outputs are made. The defaults of beams are those of the LoRA paper (Hu et al. 2021, table 11)."""

    decoding: Literal["greedy", "beam", "sample"] = "greedy"
    """The likeliest next token; the likeliest whole outputs that beams find; or by chance."""
    max_new_tokens: int = MAX_NEW_TOKENS
    """At most this many new tokens."""
    batch_size: int = 64
    """Inputs that are decoded together."""
    beams: int = 10
    """Unfinished outputs that are followed for each input."""
    length_penalty: float = 0.9
    """A finished output's score is its log-probability / its number of tokens to this power."""
    no_repeat_ngram: int = 4
    """With beams, no run of so many tokens comes twice among an output's own; 0 allows it."""
    temperature: float = 1.0
    """Sampling: logits are divided by it."""
    top_k: int = 0
    """Sampling: only so many likeliest tokens; 0 for all."""
    top_p: float = 1.0
    """Sampling: only the likeliest tokens that together have this probability."""
    sampling_seed: int = 0
    """Sampling: another seed draws other outputs; the same one the same, in whatever batches."""

    def checked(self) -> DecodingConfig:
        """Itself; raises ConfigError when a setting is out of range."""
        for name, least in (
            ("max_new_tokens", 1),
            ("batch_size", 1),
            ("beams", 1),
            ("no_repeat_ngram", 0),
            ("top_k", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", f"Give {least} or more.")
        if not abs(self.length_penalty) <= MOST_LENGTH_PENALTY:
            remedy = f"Give a number from -{MOST_LENGTH_PENALTY:g} to {MOST_LENGTH_PENALTY:g}."
            raise ConfigError(f"length_penalty is {self.length_penalty}", remedy)
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}", "Give a number above 0, up to 1.")
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}", "Give a number above 0.")
        return self

    @classmethod
    def of(cls, options: DecodingConfig) -> DecodingConfig:
        """The settings of this class alone, of a command's that has more."""
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)}).checked()

    @property
    def name(self) -> str:
        """What decides the outputs, short enough for a folder's name; empty for greedy decoding of the usual length."""
        words = {
            "greedy": [],
            "beam": [f"beam{self.beams}", f"lp{self.length_penalty:g}", f"ng{self.no_repeat_ngram}"],
            "sample": [f"sample{self.sampling_seed}", f"t{self.temperature:g}", f"k{self.top_k}", f"p{self.top_p:g}"],
        }[self.decoding]
        return "-".join([*words, *([f"n{self.max_new_tokens}"] if self.max_new_tokens != MAX_NEW_TOKENS else [])])


@torch.no_grad()
def decode(
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    end_id: int,
    config: DecodingConfig,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """The tokens after each prompt, until the end token (left out) or `max_new_tokens`, in the prompts' order.

    Prompts of like length share a batch. Ties go to the lower token id, with beams to either. `on_progress` is told how
    many prompts are done. DataError for an empty prompt, and for one that leaves too few positions for its output.
    """
    _check(prompts, config.max_new_tokens, model.head.wpe.num_embeddings)
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), config.batch_size):
        chosen = order[start : start + config.batch_size]
        for i, tokens in zip(chosen, _decode_batch(model, prompts, chosen, end_id, config), strict=True):
            outputs[i] = tokens
        on_progress(min(len(order), start + config.batch_size))
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


def _decode_batch(
    model: CachedModel, prompts: Sequence[Sequence[int]], chosen: Sequence[int], end_id: int, config: DecodingConfig
) -> list[list[int]]:
    batch = [prompts[i] for i in chosen]
    if config.decoding == "beam":
        return beam_search(
            model, batch, end_id, config.max_new_tokens, config.beams, config.length_penalty, config.no_repeat_ngram
        )
    if config.decoding == "greedy":
        return _one_by_one(model, batch, end_id, config.max_new_tokens, _likeliest)
    sampler = Sampler(config.temperature, config.top_k, config.top_p, config.sampling_seed)

    def draw(logits: Tensor, rows: Sequence[int], place: int) -> list[int]:
        return sampler.choose(logits, [chosen[row] for row in rows], place)

    return _one_by_one(model, batch, end_id, config.max_new_tokens, draw)


def _likeliest(logits: Tensor, rows: Sequence[int], place: int) -> list[int]:
    return [int(token) for token in logits.argmax(dim=1)]


def _one_by_one(
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    end_id: int,
    max_new_tokens: int,
    choose: Callable[[Tensor, Sequence[int], int], list[int]],
) -> list[list[int]]:
    """`choose` is given logits [B, V], the prompts' numbers in this batch, and how many tokens came before."""
    outputs: list[list[int]] = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    decoding = model.start(len(prompts))
    try:
        logits = decoding.forward(padded(prompts, end_id), [len(p) for p in prompts])
        for place in range(max_new_tokens):
            tokens = choose(logits.float(), alive, place)
            rows = [row for row, token in enumerate(tokens) if token != end_id]
            alive = [alive[row] for row in rows]
            for sequence, row in zip(alive, rows, strict=True):
                outputs[sequence].append(tokens[row])
            if not alive or place + 1 == max_new_tokens:
                break
            chunk = torch.tensor([[tokens[row]] for row in rows])
            logits = decoding.forward(chunk, [1] * len(rows), rows if len(rows) < len(tokens) else None)
    finally:
        decoding.close()
    return outputs
