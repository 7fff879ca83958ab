"""Names and shapes of GPT-2's parameters."""

from __future__ import annotations

import re

from torso.model.config import GPT2Config

_LAYER = re.compile(r"^h\.(\d+)\.")
_CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def layer_of(name: str) -> int | None:
    """Number of the block that a parameter belongs to; None for embeddings and the final norm."""
    match = _LAYER.match(name)
    return int(match.group(1)) if match else None


def is_conv1d(name: str) -> bool:
    """Whether Hugging Face stores this weight transposed."""
    return name.endswith(_CONV1D)


def expected_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape in module layout."""
    width, inner = config.n_embd, config.inner
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, width),
        "wpe.weight": (config.n_positions, width),
    }
    block = {
        "ln_1": (width,),
        "attn.c_attn": (3 * width, width),
        "attn.c_proj": (width, width),
        "ln_2": (width,),
        "mlp.c_fc": (inner, width),
        "mlp.c_proj": (width, inner),
    }
    for layer in range(config.n_layer):
        for name, shape in block.items():
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[:1]
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}
