"""The shape of a GPT-2, and where it is cut."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torso.errors import ConfigError, WeightsError

DROPOUTS = ("embd_pdrop", "attn_pdrop", "resid_pdrop")


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """Names are Hugging Face's; the defaults are GPT-2 small's."""

    vocab_size: int = 50257
    """Tokens in the vocabulary (V)."""
    n_positions: int = 1024
    """Longest sequence."""
    n_embd: int = 768
    """Width (C)."""
    n_layer: int = 12
    """Blocks (L)."""
    n_head: int = 12
    """Attention heads (H)."""
    n_inner: int | None = None
    """Width of the hidden layer of a block's MLP; None is four times the width."""
    layer_norm_epsilon: float = 1e-5
    """Added to the variance in layer norms."""
    activation_function: str = "gelu_new"
    """Only GPT-2's own, GELU in its tanh form."""
    embd_pdrop: float = 0.0
    """Dropout after the embeddings; 0 unless asked for, whatever the weights' config says."""
    attn_pdrop: float = 0.0
    """Dropout of attention weights."""
    resid_pdrop: float = 0.0
    """Dropout before each residual addition."""
    initializer_range: float = 0.02
    """Deviation of random initial weights."""
    bos_token_id: int = 50256
    """Token before a text."""
    eos_token_id: int = 50256
    """Token after a text."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", "Give 1 or more.")
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_embd {self.n_embd} is no multiple of n_head {self.n_head}", "Choose sizes where it is."
            )
        for name in DROPOUTS:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}", "Give a number from 0 up to, not including, 1.")
        if self.activation_function != "gelu_new":
            raise WeightsError(f"activation_function is {self.activation_function!r}", "GPT-2 uses 'gelu_new'.")

    @property
    def inner(self) -> int:
        """Width of the MLP's hidden layer."""
        return self.n_inner or 4 * self.n_embd

    @classmethod
    def from_json(cls, path: Path) -> GPT2Config:
        """Read a Hugging Face config.json; raises WeightsError when it is missing or not plain GPT-2's."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise WeightsError(
                f"{path} cannot be read: {error.strerror}", "Give a folder in Hugging Face layout."
            ) from None
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"{path} is not JSON: {error}", "Give a folder in Hugging Face layout.") from None
        _check_is_gpt2(found, path)
        known = {field.name: field.default for field in fields(cls) if field.name not in DROPOUTS}
        settings = {name: value for name, value in found.items() if name in known}
        for name, value in settings.items():
            _check_kind(name, value, known[name], path)
        return cls(**settings)

    def to_json(self) -> dict[str, Any]:
        """Content of a config.json that transformers reads."""
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "tie_word_embeddings": True} | asdict(self)


def _check_is_gpt2(found: Any, path: Path) -> None:
    """Raise WeightsError unless the settings describe the published architecture."""
    if not isinstance(found, dict) or found.get("model_type") != "gpt2":
        kind = found.get("model_type") if isinstance(found, dict) else type(found).__name__
        raise WeightsError(f"{path} describes a model of type {kind!r}, expected 'gpt2'", "Torso trains GPT-2 only.")
    expected = {
        "activation_function": "gelu_new",
        "add_cross_attention": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "tie_word_embeddings": True,
    }
    for name, value in expected.items():
        if found.get(name, value) != value:
            raise WeightsError(
                f"{path} has {name} = {found[name]!r}, expected {value!r}", "Torso trains plain GPT-2 only."
            )


def _check_kind(name: str, value: Any, default: Any, path: Path) -> None:
    """Raise WeightsError unless the value is of its default's kind; a default of None stands for a number or null."""
    kinds = {int: (int,), float: (float, int), str: (str,)}.get(type(default), (int, type(None)))
    if type(value) not in kinds:
        raise WeightsError(f"{path} has a value of a wrong kind: {name} = {value!r}", "Restore the file.")


SIZES = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(n_embd=1024, n_layer=24, n_head=16),
    "gpt2-large": GPT2Config(n_embd=1280, n_layer=36, n_head=20),
    "gpt2-xl": GPT2Config(n_embd=1600, n_layer=48, n_head=25),
}


@dataclass(frozen=True)
class Cuts:
    """Head is blocks [0, head_cut), body [head_cut, tail_cut), tail [tail_cut, n_layer)."""

    head_cut: int
    tail_cut: int
    n_layer: int

    def __post_init__(self) -> None:
        if not 0 <= self.head_cut <= self.tail_cut <= self.n_layer:
            raise ConfigError(
                f"cut layers {self.head_cut}:{self.tail_cut} are out of order for {self.n_layer} layers",
                f"They must satisfy 0 <= head_cut <= tail_cut <= {self.n_layer}.",
            )

    @classmethod
    def default(cls, n_layer: int) -> Cuts:
        """Two blocks at either end, one where there are fewer than five."""
        edge = 2 if n_layer >= 5 else 1
        return cls(min(edge, n_layer), max(min(edge, n_layer), n_layer - edge), n_layer)

    @property
    def head(self) -> range:
        """Blocks of the head."""
        return range(self.head_cut)

    @property
    def body(self) -> range:
        """Blocks of the body."""
        return range(self.head_cut, self.tail_cut)

    @property
    def tail(self) -> range:
        """Blocks of the tail."""
        return range(self.tail_cut, self.n_layer)
