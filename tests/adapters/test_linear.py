from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import initial_a
from torso.adapters.linear import AdaptedLinear
from torso.randomness import DropoutKey, dropout, dropout_scope

Kind = Literal["lora", "dora"]
SIZES = [(32, 96), (192, 192), (192, 768), (768, 2304), (3072, 768)]


def adapted(
    inputs: int,
    outputs: int,
    kind: Kind = "dora",
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    alpha: float = 16.0,
) -> tuple[nn.Linear, AdaptedLinear]:
    torch.manual_seed(inputs + outputs)
    base = nn.Linear(inputs, outputs).to(dtype)
    config = AdapterConfig(kind=kind, lora_rank=4, alpha=alpha, dropout=dropout)
    return base, AdaptedLinear(
        base, config, config.scaling, "h.0.mlp.c_fc", initial_a("h.0.mlp.c_fc.lora_A", 4, inputs, 0)
    )


def dense_norm(layer: AdaptedLinear) -> Tensor:
    a, b = layer.lora_A.detach().double(), layer.lora_B.detach().double()
    norm: Tensor = torch.linalg.vector_norm(layer.weight.double() + layer.scaling * (b @ a), dim=1)
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("size", SIZES)
def test_a_fresh_adapter_leaves_every_bit_of_the_bases_output(
    size: tuple[int, int], kind: Kind, dtype: torch.dtype
) -> None:
    base, layer = adapted(*size, kind, dtype)
    for shape in ((1, 1), (3, 17), (4, 44)):
        x = torch.randn(*shape, size[0]).to(dtype)
        assert torch.equal(layer(x), base(x))


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_fresh_adapter_leaves_every_bit_under_dropout_too(kind: Kind) -> None:
    base, layer = adapted(192, 768, kind, dropout=0.3)
    x = torch.randn(2, 44, 192)
    with dropout_scope(DropoutKey(0, 1, 2)):
        assert torch.equal(layer(x), base(x))


def test_the_base_is_frozen_and_its_tensors_are_shared() -> None:
    base, layer = adapted(8, 6)
    assert layer.weight is base.weight
    assert {name for name, p in layer.named_parameters() if p.requires_grad} == {"lora_A", "lora_B", "magnitude"}


def test_the_row_norm_equals_the_dense_one() -> None:
    _, layer = adapted(192, 768)
    nn.init.normal_(layer.lora_B, std=0.02)
    torch.testing.assert_close(layer.row_norm().double(), dense_norm(layer), rtol=2e-6, atol=0.0)


def test_the_row_norm_is_computed_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    _, layer = adapted(16, 8)
    calls: list[int] = []
    original = layer._norm_squared

    def counted() -> Tensor:
        calls.append(1)
        return original()

    monkeypatch.setattr(layer, "_norm_squared", counted)
    x = torch.randn(3, 16)
    for _ in range(4):
        layer(x).sum().backward()
    assert len(calls) == 1
    with torch.no_grad():
        layer.lora_B.add_(0.1)
    layer(x)
    layer(x)
    assert len(calls) == 2
    torch.testing.assert_close(layer.row_norm().double(), dense_norm(layer))


def test_a_row_that_the_product_nearly_cancels_keeps_its_digits() -> None:
    _, layer = adapted(64, 6, alpha=4.0)
    with torch.no_grad():
        layer.lora_B.normal_(std=0.05)
        layer.lora_B[:2] = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
        # scaling is 1: row 0 is left with a ten-thousandth of its length, row 1 with nothing
        layer.weight[0] = -layer.lora_A[0] * (1.0 - 1e-4)
        layer.weight[1] = -layer.lora_A[1]
        layer._base = None
    torch.testing.assert_close(
        layer.row_norm()[[0, 2, 3, 4, 5]].double(), dense_norm(layer)[[0, 2, 3, 4, 5]], rtol=1e-3, atol=0
    )
    assert bool((layer.row_norm() > 0.0).all())
    assert bool(layer(torch.randn(3, 64)).isfinite().all())


def test_a_row_of_zeros_in_the_base_gives_no_nan() -> None:
    base = nn.Linear(8, 4)
    with torch.no_grad():
        base.weight[1] = 0.0
    config = AdapterConfig(kind="dora", lora_rank=2)
    layer = AdaptedLinear(base, config, config.scaling, "h.0.x", initial_a("h.0.x", 2, 8, 0))
    x = torch.randn(3, 8, requires_grad=True)
    y = layer(x)
    assert torch.equal(y, base(x))
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(y.sum(), [x, *_trained(layer)]))


def _trained(layer: AdaptedLinear) -> list[nn.Parameter]:
    return [p for p in layer.parameters() if p.requires_grad]


def test_dropout_acts_inside_a_scope_only() -> None:
    _, layer = adapted(64, 32, dropout=0.5)
    nn.init.normal_(layer.lora_B)
    x = torch.randn(5, 64)
    outside = layer(x)
    with dropout_scope(DropoutKey(0, 1, 0)):
        inside = layer(x)
    assert not torch.equal(outside, inside)
    assert torch.equal(layer(x), outside)


@pytest.mark.parametrize("key", [DropoutKey(1, 3, 2), DropoutKey(0, 4, 2), DropoutKey(0, 3, 1)])
def test_a_mask_is_drawn_anew_for_each_seed_step_and_micro_batch(key: DropoutKey) -> None:
    _, layer = adapted(64, 32, "lora", dropout=0.5)
    nn.init.normal_(layer.lora_B)
    x = torch.randn(5, 64)
    with dropout_scope(DropoutKey(0, 3, 2)):
        first, again = layer(x), layer(x)
    with dropout_scope(key):
        other = layer(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_loras_dropout_falls_on_the_low_rank_paths_input_under_the_layers_name() -> None:
    base, layer = adapted(64, 32, "lora", dropout=0.5)
    nn.init.normal_(layer.lora_B)
    x = torch.randn(2, 5, 64)
    with dropout_scope(DropoutKey(0, 3, 2)):
        dropped = dropout(x, 0.5, "h.0.mlp.c_fc")
        found = layer(x)
    low_rank = layer.scaling * (dropped @ layer.lora_A.t() @ layer.lora_B.t())
    torch.testing.assert_close(found, base(x) + low_rank, rtol=1e-5, atol=1e-5)


def test_moving_the_module_forgets_its_norms() -> None:
    _, layer = adapted(16, 8)
    layer.row_norm()
    moved = copy.deepcopy(layer).double()
    assert moved._cached is None
    moved(torch.randn(2, 16, dtype=torch.float64))
