"""Values and gradients against peft: its saved fixtures, and peft itself where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch import Tensor, nn

from torso.adapters import peft_format
from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.adapters.merge import merge
from torso.model.stages import GPT2
from torso.randomness import DropoutKey, dropout, dropout_scope

if TYPE_CHECKING:
    from tests.adapters.conftest import Fixtures

Shake = Callable[[dict[str, nn.Parameter]], None]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def peft_name(name: str) -> str:
    """The name of a parameter in a live peft model."""
    module, _, leaf = name.rpartition(".")
    leaf = {"magnitude": "lora_magnitude_vector"}.get(leaf, leaf)
    return f"base_model.model.transformer.{module}.{leaf}.default.weight"


def loaded(fixtures: Fixtures, kind: str) -> tuple[GPT2, dict[str, nn.Parameter]]:
    adapter = peft_format.read(fixtures.folder / kind)
    model = fixtures.model()
    parameters = inject(model, adapter.config, seed=0)
    peft_format.load(parameters, adapter)
    return model, parameters


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_logits_loss_and_gradients_equal_the_fixtures(peft_fixtures: Fixtures, kind: str) -> None:
    model, parameters = loaded(peft_fixtures, kind)
    expected = peft_fixtures.expected(kind)
    logits = model(peft_fixtures.token_ids)
    loss = peft_fixtures.loss(logits)
    close(logits, expected["logits"])
    close(loss, expected["loss"][0])
    assert {f"grad.{peft_name(name)}" for name in parameters} == {k for k in expected if k.startswith("grad.")}
    for name, grad in zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True):
        close(grad, expected[f"grad.{peft_name(name)}"])


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_merged_logits_equal_the_fixtures(peft_fixtures: Fixtures, kind: str) -> None:
    model, _ = loaded(peft_fixtures, kind)
    merge(model)
    close(model(peft_fixtures.token_ids), peft_fixtures.expected(kind)["merged_logits"])


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_with_fresh_adapters_has_the_bases_very_bits(
    peft_fixtures: Fixtures, kind: Literal["lora", "dora"], dtype: torch.dtype
) -> None:
    base, model = peft_fixtures.model(dtype), peft_fixtures.model(dtype)
    inject(model, AdapterConfig(kind=kind, dropout=0.1), seed=0)
    with dropout_scope(DropoutKey(0, 1, 0)):
        assert torch.equal(model(peft_fixtures.token_ids), base(peft_fixtures.token_ids))


class CounterDropout(nn.Module):
    """Torso's dropout in the place of peft's."""

    def __init__(self, p: float, site: str) -> None:
        super().__init__()
        self._p, self._site = p, site

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self._p, self._site)


@pytest.fixture
def live_peft(peft_fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> Callable[[AdapterConfig], Any]:
    """A function that makes peft's model for a configuration, on transformers' GPT-2."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")

    def make(config: AdapterConfig) -> Any:
        base = transformers.GPT2LMHeadModel.from_pretrained(peft_fixtures.folder / "base")
        for drop in (base.transformer.drop, *(d for b in base.transformer.h for d in _dropouts(b))):
            drop.p = 0.0
        settings = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=list(config.targets),
            use_dora=config.kind == "dora",
            use_rslora=config.rslora,
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        )
        return peft.get_peft_model(base, settings).train()

    return make


def _dropouts(block: Any) -> list[Any]:
    return [block.attn.attn_dropout, block.attn.resid_dropout, block.mlp.dropout]


def _copy_into_peft(model: Any, parameters: dict[str, nn.Parameter], config: AdapterConfig) -> None:
    theirs = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            theirs[peft_name(name)].copy_(parameter)
    if config.dropout > 0.0:
        for name in {name.rpartition(".")[0] for name in parameters}:
            layer = model.get_submodule(f"base_model.model.transformer.{name}")
            layer.lora_dropout["default"] = CounterDropout(config.dropout, name)


CONFIGS = {
    "lora on all layers": AdapterConfig(lora_rank=3, alpha=5.0),
    "rslora": AdapterConfig(lora_rank=6, alpha=7.0, rslora=True),
    "dora on all layers": AdapterConfig(kind="dora", lora_rank=5, alpha=9.0),
    "dora with rslora": AdapterConfig(kind="dora", lora_rank=6, alpha=4.0, rslora=True),
    "dora on two layers": AdapterConfig(kind="dora", lora_rank=1, alpha=0.5, targets=("attn.c_proj", "mlp.c_fc")),
    "lora with dropout": AdapterConfig(lora_rank=4, dropout=0.4),
    "dora with dropout": AdapterConfig(kind="dora", lora_rank=4, dropout=0.4),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_values_and_gradients_equal_a_live_peft(
    name: str, peft_fixtures: Fixtures, live_peft: Callable[[AdapterConfig], Any], shake: Shake
) -> None:
    config = CONFIGS[name]
    theirs, ours = live_peft(config), peft_fixtures.model()
    parameters = inject(ours, config, seed=0)
    if config.kind == "dora":
        initial = dict(theirs.named_parameters())
        for parameter in (n for n in parameters if n.endswith("magnitude")):
            close(parameters[parameter], initial[peft_name(parameter)])
    shake(parameters)
    _copy_into_peft(theirs, parameters, config)
    with dropout_scope(DropoutKey(0, 1, 0)):
        found, expected = ours(peft_fixtures.token_ids), theirs(peft_fixtures.token_ids).logits
    close(found, expected)
    grads = torch.autograd.grad(peft_fixtures.loss(found), list(parameters.values()))
    trained = dict(theirs.named_parameters())
    same = [trained[peft_name(parameter)] for parameter in parameters]
    for grad, other in zip(grads, torch.autograd.grad(peft_fixtures.loss(expected), same), strict=True):
        close(grad, other)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["rslora", "dora on all layers"])
def test_peft_loads_what_torso_writes(
    name: str, peft_fixtures: Fixtures, shake: Shake, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    ours = peft_fixtures.model()
    parameters = inject(ours, CONFIGS[name], seed=0)
    shake(parameters)
    adapter = peft_format.PeftAdapter(CONFIGS[name], {n: p.detach() for n, p in parameters.items()})
    peft_format.write(tmp_path / "adapter", adapter, base_model="gpt2")
    base = transformers.GPT2LMHeadModel.from_pretrained(peft_fixtures.folder / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    close(ours(peft_fixtures.token_ids), theirs(peft_fixtures.token_ids).logits)
