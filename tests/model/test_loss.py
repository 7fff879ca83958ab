from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from torso.model.loss import CHUNK_ROWS, target_loss

BATCH, TOKENS, WIDTH, VOCABULARY = 6, 101, 16, 37


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, embeddings, token ids and a mask with more targets than fit one chunk."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(BATCH, TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    wte = torch.randn(VOCABULARY, WIDTH, generator=generator).to(dtype).requires_grad_()
    token_ids = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=generator)
    mask = torch.rand(BATCH, TOKENS, generator=generator) < 0.6
    mask[:, 0] = False
    assert int(mask.sum()) > CHUNK_ROWS
    return hidden, wte, token_ids, mask


def expected(hidden: Tensor, wte: Tensor, token_ids: Tensor, mask: Tensor) -> Tensor:
    """torch's cross entropy over all positions in float64, masked by its ignore_index."""
    logits = hidden.double() @ wte.double().t()
    labels = token_ids.masked_fill(~mask, -100)[:, 1:]
    return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels.reshape(-1), reduction="sum")


def test_loss_and_gradients_are_torchs_summed_cross_entropy_of_the_targets() -> None:
    inputs = example()
    loss, reference = target_loss(*inputs), expected(*inputs)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), reference, rtol=1e-6, atol=0)
    found = torch.autograd.grad(loss / 7, inputs[:2])
    for gradient, right in zip(found, torch.autograd.grad(reference / 7, inputs[:2]), strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-5, atol=1e-6)


def test_frozen_embeddings_get_no_gradient_and_hidden_states_the_same() -> None:
    hidden, wte, token_ids, mask = example()
    (with_wte, _) = torch.autograd.grad(target_loss(hidden, wte, token_ids, mask), (hidden, wte))
    (frozen,) = torch.autograd.grad(target_loss(hidden, wte.detach(), token_ids, mask), hidden)
    assert torch.equal(with_wte, frozen)


def test_only_positions_before_a_target_get_a_gradient() -> None:
    hidden, wte, token_ids, mask = example()
    (gradient,) = torch.autograd.grad(target_loss(hidden, wte, token_ids, mask), hidden)
    assert torch.equal(gradient[:, :-1].abs().sum(2) > 0, mask[:, 1:])
    assert not gradient[:, -1].any()


def test_without_targets_it_is_0_and_its_gradients_too() -> None:
    hidden, wte, token_ids, mask = example()
    loss = target_loss(hidden, wte, token_ids, torch.zeros_like(mask))
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (hidden, wte)))


def test_the_first_token_has_nothing_before_it_and_is_no_target() -> None:
    hidden, wte, token_ids, mask = example()
    first = mask.clone()
    first[:, 0] = True
    assert torch.equal(target_loss(hidden, wte, token_ids, first), target_loss(hidden, wte, token_ids, mask))


def test_the_sum_over_sequences_is_the_sum_of_their_own_losses() -> None:
    hidden, wte, token_ids, mask = example()
    rows = [target_loss(hidden[i : i + 1], wte, token_ids[i : i + 1], mask[i : i + 1]) for i in range(BATCH)]
    torch.testing.assert_close(target_loss(hidden, wte, token_ids, mask), torch.stack(rows).sum())


def test_logits_in_the_thousands_do_not_overflow() -> None:
    hidden, wte, token_ids, mask = example()
    inputs = (hidden * 1000, wte, token_ids, mask)
    torch.testing.assert_close(target_loss(*inputs).double(), expected(*inputs), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precision_sums_in_float32_and_keeps_its_dtype_in_gradients(dtype: torch.dtype, tolerance: float) -> None:
    inputs = example(dtype)
    loss, reference = target_loss(*inputs), expected(*inputs)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), reference, rtol=tolerance, atol=0)
    found = torch.autograd.grad(loss, inputs[:2])
    for gradient, right in zip(found, torch.autograd.grad(reference, inputs[:2]), strict=True):
        assert gradient.dtype == dtype
        error = (gradient.double() - right.double()).norm() / right.double().norm()
        assert float(error) < 2 * tolerance
