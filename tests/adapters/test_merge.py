from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import nn

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.adapters.linear import AdaptedLinear
from torso.adapters.merge import merge, merged_state, merged_weight
from torso.model.config import GPT2Config
from torso.model.stages import GPT2

Shake = Callable[[dict[str, nn.Parameter]], None]
CONFIG = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
TOKENS = torch.arange(24).view(2, 12)


def trained(kind: Literal["lora", "dora"], shake: Shake, dtype: torch.dtype = torch.float32) -> GPT2:
    torch.manual_seed(0)
    model = GPT2(CONFIG).to(dtype).requires_grad_(False).eval()
    shake(inject(model, AdapterConfig(kind=kind, lora_rank=3), seed=0))
    return model


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_merged_model_computes_what_the_adapted_one_does(kind: Literal["lora", "dora"], shake: Shake) -> None:
    model = trained(kind, shake)
    before = model(TOKENS)
    merge(model)
    assert not any(isinstance(child, AdaptedLinear) for child in model.modules())
    assert not any(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(model(TOKENS), before, rtol=1e-5, atol=1e-5)


def test_merging_leaves_the_bases_tensors_alone(shake: Shake) -> None:
    model = trained("dora", shake)
    weight = model.get_submodule("h.0.mlp.c_fc").get_parameter("weight")
    before = weight.clone()
    merge(model)
    assert torch.equal(weight, before)
    assert not torch.equal(model.get_submodule("h.0.mlp.c_fc").get_parameter("weight"), before)


def test_a_merged_weight_is_float32_on_a_narrow_base_and_the_merged_layer_is_narrow(shake: Shake) -> None:
    model = trained("dora", shake, torch.bfloat16)
    layer = model.get_submodule("h.1.attn.c_attn")
    assert isinstance(layer, AdaptedLinear)
    weight = merged_weight(layer)
    assert weight.dtype == torch.float32
    merge(model)
    merged = model.get_submodule("h.1.attn.c_attn").get_parameter("weight")
    assert torch.equal(merged, weight.bfloat16())


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_the_merged_state_is_a_plain_models(kind: Literal["lora", "dora"], shake: Shake) -> None:
    model, plain = trained(kind, shake), GPT2(CONFIG)
    plain.load_state_dict(merged_state(model))
    torch.testing.assert_close(plain(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


def test_a_fresh_adapter_merges_into_the_same_weight(shake: Shake) -> None:
    model = GPT2(CONFIG)
    inject(model, AdapterConfig(kind="dora"), seed=0)
    layer = model.get_submodule("h.0.mlp.c_proj")
    assert isinstance(layer, AdaptedLinear)
    assert torch.equal(merged_weight(layer), layer.weight)
