"""The model whole, and cut into stages, against transformers and against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from torso.model.config import SIZES, Cuts, GPT2Config
from torso.model.names import expected_shapes, is_conv1d
from torso.model.stages import GPT2, Body, Head, Tail
from torso.model.weights import FolderWeights, RandomWeights, WeightSource, build


def whole(source: WeightSource) -> GPT2:
    return build(lambda config, cuts: GPT2(config), source, Cuts.default(source.config.n_layer))


def stages(source: WeightSource, head_cut: int, tail_cut: int) -> tuple[Head, Body, Tail]:
    cuts = Cuts(head_cut, tail_cut, source.config.n_layer)
    return build(Head, source, cuts), build(Body, source, cuts), build(Tail, source, cuts)


def cut_logits(parts: tuple[Head, Body, Tail], token_ids: Tensor) -> Tensor:
    head, body, tail = parts
    return tail.logits(tail(body(head(token_ids))))


def random_ids(config: GPT2Config, batch: int, tokens: int) -> Tensor:
    return torch.randint(config.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(2))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_logits_are_those_that_transformers_saved(base: Path, token_ids: Tensor) -> None:
    close(whole(FolderWeights(base))(token_ids), load_file(base.parent / "base_out.safetensors")["logits"])


@pytest.mark.parametrize("cuts", [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)])
def test_wherever_it_is_cut_logits_are_transformers(
    base: Path, reference: Any, token_ids: Tensor, cuts: tuple[int, int]
) -> None:
    with torch.no_grad():
        close(cut_logits(stages(FolderWeights(base), *cuts), token_ids), reference(token_ids).logits)


def test_gradients_of_all_weights_are_transformers(base: Path, reference: Any, token_ids: Tensor) -> None:
    model = whole(FolderWeights(base)).requires_grad_()
    weighting = torch.randn(*token_ids.shape, 97, generator=torch.Generator().manual_seed(4))
    expected = dict(reference.named_parameters())
    found = torch.autograd.grad((model(token_ids) * weighting).sum(), list(model.parameters()))
    right = torch.autograd.grad(
        (reference(token_ids).logits * weighting).sum(), [expected[f"transformer.{n}"] for n in names(model)]
    )
    for name, gradient, other in zip(names(model), found, right, strict=True):
        torch.testing.assert_close(gradient, other.t() if is_conv1d(name) else other, rtol=1e-4, atol=1e-4)


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


class Held(RandomWeights):
    """Makes each tensor once; whole and stages share it."""

    def __init__(self, config: GPT2Config, seed: int) -> None:
        super().__init__(config, seed)
        self._made = {name: RandomWeights(config, seed).tensor(name) for name in expected_shapes(config)}

    def tensor(self, name: str) -> Tensor:
        return self._made[name]


@pytest.mark.slow
def test_gpt2_small_of_random_weights_has_transformers_logits_whole_and_cut() -> None:
    transformers = pytest.importorskip("transformers")
    source = Held(SIZES["gpt2"], seed=1)
    model = whole(source)
    token_ids = random_ids(source.config, 2, 40)
    with torch.device("meta"):
        other = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    state = {f"transformer.{n}": t.t() if is_conv1d(n) else t for n, t in model.state_dict().items()}
    other.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, assign=True)
    with torch.no_grad():
        expected = other.eval()(token_ids).logits
        close(model(token_ids), expected)
        close(cut_logits(stages(source, 2, 10), token_ids), expected)


def test_each_stage_holds_its_own_parameters_and_their_union_is_the_whole(small: RandomWeights) -> None:
    head, body, tail = (set(names(stage)) for stage in stages(small, 2, 3))
    assert head | body | tail == set(names(whole(small)))
    assert head & tail == {"wte.weight"}
    assert not body & (head | tail)
    assert {name.split(".")[1] for name in body} == {"2"}


@pytest.mark.parametrize("cuts", [(0, 0), (1, 4), (2, 3), (2, 5), (5, 5)])
def test_cut_and_whole_give_the_same_bits_forward_and_backward(small: RandomWeights, cuts: tuple[int, int]) -> None:
    """The stages meet at leaves, as they do across the wire: activations there, their gradients back."""
    model, parts = whole(small).requires_grad_(), [stage.requires_grad_() for stage in stages(small, *cuts)]
    token_ids = random_ids(small.config, 3, 11)
    logits = model(token_ids)
    weighting = torch.randn(logits.shape, generator=torch.Generator().manual_seed(6))
    (logits * weighting).sum().backward()
    found, gradients = gradients_across_leaves(parts, token_ids, weighting)
    assert torch.equal(found, logits)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(gradients[name], parameter.grad), name


def gradients_across_leaves(parts: list[Any], token_ids: Tensor, weighting: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and each parameter's gradient summed over the stages from the last."""
    head, body, tail = parts
    activations = head(token_ids)
    into_body = activations.detach().requires_grad_()
    out_of_body = body(into_body)
    into_tail = out_of_body.detach().requires_grad_()
    logits: Tensor = tail.logits(tail(into_tail))
    (logits * weighting).sum().backward()
    if out_of_body.requires_grad and out_of_body is not into_body:
        out_of_body.backward(into_tail.grad)
    activations.backward(into_tail.grad if out_of_body is into_body else into_body.grad)
    gradients: dict[str, Tensor] = {}
    for stage in (tail, body, head):
        for name, parameter in stage.named_parameters():
            gradients[name] = gradients[name] + parameter.grad if name in gradients else parameter.grad
    return logits, gradients


def test_later_tokens_and_padding_do_not_touch_earlier_positions(small: RandomWeights) -> None:
    model, token_ids = whole(small), random_ids(small.config, 3, 12)
    other = token_ids.clone()
    other[:, 7:] = 0
    assert torch.equal(model(token_ids)[:, :7], model(other)[:, :7])
    close(model(token_ids)[:, :7], model(token_ids[:, :7]))
    assert not torch.equal(model(token_ids)[:, 7:], model(other)[:, 7:])


def test_a_sequence_fills_all_positions_and_not_one_more(small: RandomWeights) -> None:
    model = whole(small)
    assert model(random_ids(small.config, 1, 32)).shape == (1, 32, 61)
    with pytest.raises(IndexError):
        model(random_ids(small.config, 1, 33))
