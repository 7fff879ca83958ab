"""Parameters, products and kept values of a GPT-2, counted from its shape.

C width, I width of the MLP's hidden layer, L blocks, V vocabulary, P positions, R rank of an adapter, B sequences, T
tokens. One multiplication with its addition is two FLOPs (Kaplan et al. 2020, "Scaling Laws for Neural Language
Models", section 2.1).
"""

from __future__ import annotations

from torso.adapters.config import AdapterConfig
from torso.model.config import GPT2Config
from torso.planner.setting import Setting


def linear_sizes(shape: GPT2Config) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a block's linear layers."""
    c, i = shape.n_embd, shape.inner
    return {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c), "mlp.c_fc": (c, i), "mlp.c_proj": (i, c)}


def block_parameters(shape: GPT2Config) -> int:
    """Linear layers with biases, and two layer norms: 4C² + 2CI + 9C + I, which is 12C² + 13C where I is 4C."""
    linear = sum((inputs + 1) * outputs for inputs, outputs in linear_sizes(shape).values())
    return linear + 4 * shape.n_embd


def embedding_parameters(shape: GPT2Config) -> int:
    """Of tokens and positions: (V + P)C; the LM head is tied."""
    return (shape.vocab_size + shape.n_positions) * shape.n_embd


def model_parameters(shape: GPT2Config) -> int:
    """All of them, N."""
    return embedding_parameters(shape) + shape.n_layer * block_parameters(shape) + 2 * shape.n_embd


def adapter_parameters(shape: GPT2Config, adapter: AdapterConfig, layers: range) -> int:
    """LoRA: R (inputs + outputs) a layer (Hu et al. 2021, section 4.1); DoRA: one more an output (Liu et al. 2024)."""
    return sum(count for layer in layers for count in _adapters(shape, adapter, layer).values())


def _adapters(shape: GPT2Config, adapter: AdapterConfig, layer: int) -> dict[str, int]:
    found = {}
    for name, (inputs, outputs) in linear_sizes(shape).items():
        size = adapter.size(f"h.{layer}.{name}")
        if size is not None:
            found[name] = size[0] * (inputs + outputs) + (outputs if adapter.kind == "dora" else 0)
    return found


def trainable_parameters(setting: Setting, layers: range | None = None) -> int:
    """Of the whole model, or of the adapters in these blocks."""
    shape = setting.shape
    if setting.adapter is None:
        return model_parameters(shape) if layers is None else len(layers) * block_parameters(shape)
    return adapter_parameters(shape, setting.adapter, range(shape.n_layer) if layers is None else layers)


def block_forward_flops(setting: Setting) -> float:
    """Of one block on one micro-batch: 2 × weights × BT for the products, 4 C T × BT for attention's two.

    Attention's count is of all pairs: the fused kernels skip part of the masked half, which is left out of account.
    """
    shape, positions = setting.shape, setting.positions
    products = sum(inputs * outputs for inputs, outputs in linear_sizes(shape).values())
    low_rank = 0 if setting.adapter is None else adapter_parameters(shape, setting.adapter, range(1))
    return 2.0 * positions * (products + low_rank) + 4.0 * positions * setting.tokens * shape.n_embd


def block_backward_flops(setting: Setting) -> float:
    """Gradients of inputs cost a forward; those of weights another one, which frozen weights spare.

    Attention has no weights: its backward is two forwards, and a recomputation in the fused kernel.
    """
    shape, positions = setting.shape, setting.positions
    products = sum(inputs * outputs for inputs, outputs in linear_sizes(shape).values())
    attention = 4.0 * positions * setting.tokens * shape.n_embd
    if setting.adapter is None:
        return 2.0 * 2.0 * positions * products + 2.5 * attention
    low_rank = adapter_parameters(shape, setting.adapter, range(1))
    return 2.0 * positions * (products + 2.0 * low_rank) + 2.5 * attention


def loss_flops(setting: Setting) -> float:
    """Of the LM head, forward and backward, at target rows only.

    Two products of 2 V C a row, three when it is trained.
    """
    products = 3 if setting.adapter is None else 2
    return products * 2.0 * setting.target_rows * setting.shape.vocab_size * setting.shape.n_embd


def block_kept_values(setting: Setting) -> float:
    """Numbers that one block keeps for its backward pass, for one micro-batch.

    (8C + 2I) a position, which is 16C where I is 4C: two inputs of layer norms, two outputs of them, queries, keys
    and values, attention's output, GELU's input and output. DoRA keeps the outputs of its two last layers (2C) too,
    an adapter its R low-rank values, attention one sum a head, a layer norm two. Dropout keeps its masks, and takes
    attention off the fused kernel: then B H T² weights are kept before and after their mask, and the mask.
    """
    shape, positions = setting.shape, setting.positions
    c, i = shape.n_embd, shape.inner
    values = 8.0 * c + 2.0 * i + shape.n_head + 4.0
    if setting.adapter is not None:
        values += _adapter_kept_values(setting.shape, setting.adapter)
    if shape.resid_pdrop:
        values += 2.0 * c
    if shape.attn_pdrop:
        values += 3.0 * shape.n_head * setting.tokens
    return values * positions


def _adapter_kept_values(shape: GPT2Config, adapter: AdapterConfig) -> float:
    """A position's, over the linear layers of block 0."""
    values = 0.0
    for name, (inputs, outputs) in linear_sizes(shape).items():
        size = adapter.size(f"h.0.{name}")
        if size is None:
            continue
        values += size[0] + (inputs if adapter.dropout else 0)
        if adapter.kind == "dora" and name.endswith("c_proj"):
            values += outputs
    return values
