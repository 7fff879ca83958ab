from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject, num_parameters
from torso.adapters.linear import AdaptedLinear
from torso.adapters.names import parameter_order
from torso.errors import AdapterError
from torso.model.config import Cuts, GPT2Config
from torso.model.stages import GPT2, Body, Head, Tail

CONFIG = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=6, n_head=2)


def model() -> GPT2:
    return GPT2(CONFIG).requires_grad_(False)


def test_parameters_come_by_global_name_in_global_order() -> None:
    parameters = inject(model(), AdapterConfig(kind="dora", lora_rank=2), seed=0)
    assert list(parameters) == parameter_order(parameters)
    assert list(parameters)[:4] == [f"h.0.attn.c_attn.{leaf}" for leaf in ("lora_A", "lora_B", "magnitude")] + [
        "h.0.attn.c_proj.lora_A"
    ]
    assert len(parameters) == 6 * 4 * 3


def test_only_adapters_train() -> None:
    whole = model()
    parameters = inject(whole, AdapterConfig(lora_rank=2, targets=("c_attn",)), seed=0)
    trained = {name for name, p in whole.named_parameters() if p.requires_grad}
    assert trained == set(parameters)
    assert num_parameters(parameters) == 6 * (2 * 16 + 48 * 2)


def test_initial_values_are_the_same_in_a_stage_and_in_the_whole() -> None:
    config, cuts = AdapterConfig(kind="lora", lora_rank=2), Cuts(head_cut=2, tail_cut=4, n_layer=6)
    whole = inject(model(), config, seed=3)
    union: dict[str, nn.Parameter] = {}
    for stage in (Head(CONFIG, cuts), Body(CONFIG, cuts), Tail(CONFIG, cuts)):
        union |= inject(stage, config, seed=3)
    assert union.keys() == whole.keys()
    assert all(torch.equal(union[name], whole[name]) for name in whole)


def test_initial_values_depend_on_the_seed() -> None:
    config = AdapterConfig(lora_rank=2)
    one, other = inject(model(), config, seed=0), inject(model(), config, seed=1)
    assert not torch.equal(one["h.0.attn.c_attn.lora_A"], other["h.0.attn.c_attn.lora_A"])
    assert not torch.equal(one["h.0.attn.c_attn.lora_A"], one["h.1.attn.c_attn.lora_A"])


def test_a_is_uniform_within_its_bound_and_b_is_zero() -> None:
    module = nn.ModuleDict({"mlp": nn.ModuleDict({"c_fc": nn.Linear(400, 8)})})
    parameters = inject(module, AdapterConfig(lora_rank=50, targets=("c_fc",)), seed=0)
    a, b = (parameters[f"mlp.c_fc.{leaf}"].detach() for leaf in ("lora_A", "lora_B"))
    bound = 1.0 / math.sqrt(400)
    assert float(a.abs().max()) <= bound
    assert float(a.std()) == pytest.approx(bound / math.sqrt(3.0), rel=0.02)
    assert float(b.abs().max()) == 0.0


def test_a_second_injection_is_refused() -> None:
    whole = model()
    inject(whole, AdapterConfig(lora_rank=2, targets=("c_attn",)), seed=0)
    with pytest.raises(AdapterError, match="already"):
        inject(whole, AdapterConfig(lora_rank=2, targets=("c_fc",)), seed=0)
    assert sum(isinstance(child, AdaptedLinear) for child in whole.modules()) == 6


def test_a_stage_without_blocks_has_no_adapters() -> None:
    head = Head(CONFIG, Cuts(head_cut=0, tail_cut=4, n_layer=6))
    assert inject(head, AdapterConfig(), seed=0) == {}


def test_linear_layers_of_other_names_are_refused() -> None:
    with pytest.raises(AdapterError, match="none of the module's 1 linear layers"):
        inject(nn.ModuleDict({"other": nn.Linear(3, 3)}), AdapterConfig(), seed=0)


def test_a_linear_layer_without_bias_is_refused_by_name() -> None:
    module = nn.ModuleDict({"mlp": nn.ModuleDict({"c_fc": nn.Linear(3, 3, bias=False)})})
    with pytest.raises(AdapterError, match=r"mlp\.c_fc has no bias"):
        inject(module, AdapterConfig(), seed=0)
