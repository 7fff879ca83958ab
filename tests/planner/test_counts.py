"""Counts against the real modules, torch's own FLOP counter, and the tensors that autograd really keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.model.config import SIZES, Cuts, GPT2Config
from torso.model.loss import target_loss
from torso.model.stages import GPT2, Body
from torso.planner.counts import (
    adapter_parameters,
    block_backward_flops,
    block_forward_flops,
    block_kept_values,
    loss_flops,
    model_parameters,
)
from torso.planner.setting import Setting

Make = Callable[..., Setting]
SMALL = GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=2, n_head=4)


def body(adapter: AdapterConfig | None) -> tuple[Body, list[torch.nn.Parameter]]:
    torch.manual_seed(0)
    module = Body(SMALL, Cuts(0, 1, 2))
    if adapter is None:
        return module, list(module.parameters())
    return module, list(inject(module.requires_grad_(False), adapter, 0).values())


@pytest.mark.parametrize("name", sorted(SIZES))
def test_parameters_are_those_of_the_module(name: str) -> None:
    with torch.device("meta"):
        module = GPT2(SIZES[name])
    assert model_parameters(SIZES[name]) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("targets", [("c_attn",), ("all",)])
def test_adapter_parameters_are_those_that_are_injected(kind: str, targets: tuple[str, ...]) -> None:
    adapter = AdapterConfig(kind=kind, lora_rank=3, targets=targets)  # type: ignore[arg-type]
    _, trained = body(adapter)
    assert adapter_parameters(SMALL, adapter, range(1)) == sum(p.numel() for p in trained)


def in_place(own: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], **_: object) -> int:
    """What torch's counter leaves out: products that are added to their target."""
    return 2 * a[0] * a[1] * b[1]


def counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})


@pytest.mark.parametrize("adapter", [None, AdapterConfig(lora_rank=4)])
def test_flops_are_what_torch_counts(adapter: AdapterConfig | None, setting: Make) -> None:
    planned = setting(shape=SMALL, adapter=adapter, tokens=32, micro_batch_size=2)
    module, trained = body(adapter)
    x = torch.randn(2, 32, 64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):  # the counter knows no fused attention on a CPU
        with counter() as forward:
            y = module(x)
        with counter() as backward:
            torch.autograd.grad(y, [x, *trained], torch.ones_like(y))
    recomputed = 0.5 * 4 * 2 * 32 * 32 * 64  # by the fused kernel only
    assert block_forward_flops(planned) == forward.get_total_flops()
    assert block_backward_flops(planned) == backward.get_total_flops() + recomputed


@pytest.mark.parametrize("full", [False, True])
def test_the_losss_flops_are_what_torch_counts(full: bool, setting: Make) -> None:
    planned = setting(shape=SMALL, adapter=None if full else AdapterConfig(), tokens=32, micro_batch_size=2)
    wte, hidden = torch.randn(300, 64, requires_grad=full), torch.randn(2, 32, 64, requires_grad=True)
    with counter() as counted:
        target_loss(hidden, wte, torch.zeros(2, 32, dtype=torch.long), torch.ones(2, 32, dtype=torch.bool))
    assert planned.target_rows == 62
    assert loss_flops(planned) == counted.get_total_flops()


@pytest.mark.parametrize("adapter", [None, AdapterConfig(lora_rank=4), AdapterConfig(kind="dora", lora_rank=4)])
def test_kept_values_are_those_of_the_tensors_that_autograd_keeps(adapter: AdapterConfig | None, setting: Make) -> None:
    planned = setting(shape=SMALL, adapter=adapter, tokens=32, micro_batch_size=2)
    module, _ = body(adapter)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module(torch.randn(2, 32, 64, requires_grad=True))
    assert y.shape == (2, 32, 64)
    assert block_kept_values(planned) == pytest.approx(sum(kept.values()), rel=0.03)
