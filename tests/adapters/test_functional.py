"""The hand-written gradients against torch's own numbers and its own autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from torso.adapters.functional import RowScale, adapted_linear

N, IN, OUT, R, SCALING = 5, 7, 6, 3, 1.7


def tensors(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x, weight, bias, A, B, magnitude, norm, mask; those that are trained require gradients."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    x, weight, bias, a, b = normal(N, IN), normal(OUT, IN), normal(OUT), normal(R, IN), normal(OUT, R)
    magnitude, norm = normal(OUT).abs() + 0.5, normal(OUT).abs() + 0.5
    mask = (torch.rand(N, IN, generator=generator) > 0.3).to(dtype) / 0.7
    for trained in (x, a, b, magnitude):
        trained.requires_grad_()
    return x, weight, bias, a, b, magnitude, norm, mask


def plain(
    x: Tensor, weight: Tensor, bias: Tensor, a: Tensor, b: Tensor, scale: RowScale | None, mask: Tensor | None
) -> Tensor:
    """The same formulas with nothing but torch's autograd, as peft composes them."""
    dropped = x if mask is None else x * mask
    low_rank = SCALING * linear(linear(dropped, a), b)
    if scale is None:
        return linear(x, weight, bias) + low_rank
    c = scale.magnitude / scale.row_norm
    return linear(x, weight, bias) + (c - 1.0) * linear(dropped, weight) + c * low_rank


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_gradients_equal_finite_differences(dora: bool, with_mask: bool) -> None:
    x, weight, bias, a, b, magnitude, norm, mask = tensors(torch.float64)

    def run(x: Tensor, a: Tensor, b: Tensor, magnitude: Tensor) -> Tensor:
        scale = RowScale(magnitude, norm) if dora else None
        return adapted_linear(x, weight, bias, a, b, SCALING, scale, mask if with_mask else None)

    inputs = (x, a, b, magnitude if dora else magnitude.detach())
    assert torch.autograd.gradcheck(run, inputs)


def results(function: Callable[..., Tensor], dora: bool, with_mask: bool) -> list[Tensor]:
    x, weight, bias, a, b, magnitude, norm, mask = tensors(torch.float32)
    scale = RowScale(magnitude, norm) if dora else None
    y = function(x, weight, bias, a, b, scale, mask if with_mask else None)
    trained = [x, a, b, magnitude] if dora else [x, a, b]
    grad = torch.linspace(-1.0, 1.0, y.numel()).view_as(y)
    return [y, *torch.autograd.grad(y, trained, grad)]


def handwritten(
    x: Tensor, weight: Tensor, bias: Tensor, a: Tensor, b: Tensor, scale: RowScale | None, mask: Tensor | None
) -> Tensor:
    return adapted_linear(x, weight, bias, a, b, SCALING, scale, mask)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_values_and_gradients_equal_plain_autograd(dora: bool, with_mask: bool) -> None:
    found, expected = results(handwritten, dora, with_mask), results(plain, dora, with_mask)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dora", [False, True])
def test_the_same_inputs_give_the_same_bits(dora: bool) -> None:
    first, second = results(handwritten, dora, True), results(handwritten, dora, True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("with_mask", [False, True])
def test_an_input_that_needs_no_gradient_changes_no_other_gradient(with_mask: bool) -> None:
    x, weight, bias, a, b, magnitude, norm, mask = tensors(torch.float32)
    for scale in (None, RowScale(magnitude, norm)):
        trained = [a, b] if scale is None else [a, b, magnitude]
        grads = []
        for inputs in (x, x.detach()):
            y = adapted_linear(inputs, weight, bias, a, b, SCALING, scale, mask if with_mask else None)
            grads.append(torch.autograd.grad(y.sum(), trained))
        assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dora", [False, True])
def test_adapters_and_their_gradients_stay_float32_on_a_narrow_base(dtype: torch.dtype, dora: bool) -> None:
    x, weight, bias, a, b, magnitude, norm, _ = (t.detach() for t in tensors(torch.float32))
    trained = [t.requires_grad_() for t in ((a, b, magnitude) if dora else (a, b))]
    scale = RowScale(magnitude, norm) if dora else None
    narrow = adapted_linear(x.to(dtype), weight.to(dtype), bias.to(dtype), a, b, SCALING, scale)
    wide = adapted_linear(x, weight, bias, a, b, SCALING, scale)
    assert narrow.dtype == dtype
    torch.testing.assert_close(narrow.float(), wide, rtol=0.03, atol=0.1)
    found = torch.autograd.grad(narrow.float().sum(), trained)
    for one, other in zip(found, torch.autograd.grad(wide.sum(), trained), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.3)


def test_a_small_change_of_magnitude_is_not_rounded_away_in_bf16() -> None:
    x, weight, bias, a, _, _, norm, _ = (t.detach() for t in tensors(torch.float32))
    b, c = torch.zeros(OUT, R), 1.003
    x, weight, bias = (t.to(torch.bfloat16) for t in (x.repeat(400, 1), weight, bias))
    before = adapted_linear(x, weight, bias, a, b, SCALING, RowScale(norm, norm)).float()
    after = adapted_linear(x, weight, bias, a, b, SCALING, RowScale(norm * c, norm)).float()
    assert torch.tensor(c).bfloat16() == 1.0
    assert not torch.equal(before, after)


def test_a_magnitude_of_zero_gives_no_nan() -> None:
    x, weight, bias, a, b, magnitude, norm, _ = tensors(torch.float32)
    silent = torch.where(torch.arange(OUT) == 2, 0.0, magnitude).detach().requires_grad_()
    y = adapted_linear(x, weight, bias, a, b, SCALING, RowScale(silent, norm))
    torch.testing.assert_close(y[:, 2], bias[2].expand(N), atol=1e-6, rtol=0.0)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(y.sum(), [x, a, b, silent]))
