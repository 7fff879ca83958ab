"""Folding adapters into the weights they adapt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torso.adapters.inject import LEAVES
from torso.adapters.linear import AdaptedLinear


@torch.no_grad()
def merged_weight(layer: AdaptedLinear) -> Tensor:
    """W + s B A, with DoRA its rows scaled by c; [out, in] float32, a tensor of its own."""
    merged = torch.addmm(layer.weight.float(), layer.lora_B, layer.lora_A, alpha=layer.scaling)
    if layer.magnitude is None:
        return merged
    return merged.mul_((layer.magnitude / layer.row_norm()).unsqueeze(1))


def merge(module: nn.Module) -> None:
    """Replace every adapted layer by a plain one with the merged weight, in the dtype of the layer's base.

    The base's own tensors stay as they are, for others may share them. Does nothing where there are no adapters.
    """
    for name, child in list(module.named_modules()):
        if isinstance(child, AdaptedLinear):
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, _plain(child))


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The parameters a model without adapters would have, by name, with the adapted weights merged in float32."""
    state = {name: p.detach() for name, p in module.named_parameters() if name.rpartition(".")[2] not in LEAVES}
    adapted = {name: child for name, child in module.named_modules() if isinstance(child, AdaptedLinear)}
    return state | {f"{name}.weight": merged_weight(layer) for name, layer in adapted.items()}


def _plain(layer: AdaptedLinear) -> nn.Linear:
    out_features, in_features = layer.weight.shape
    plain = nn.Linear(in_features, out_features, device="meta")
    plain.weight = nn.Parameter(merged_weight(layer).to(layer.weight.dtype), requires_grad=False)
    plain.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    return plain.train(layer.training)
