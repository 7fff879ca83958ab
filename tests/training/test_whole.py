"""Training of all weights, against transformers and torch's own AdamW, clipping and sum of losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torso.errors import CheckpointError
from torso.model.config import Cuts
from torso.model.names import is_conv1d
from torso.model.stages import GPT2WithLoss
from torso.model.weights import FolderWeights, build
from torso.parallel.group import Group
from torso.parallel.strategy import Single
from torso.training.checkpoint import Checkpoint
from torso.training.config import OptimizerConfig
from torso.training.part import Update
from torso.training.whole import Recipe, WholeModel

RATE, LIMIT = 0.01, 0.5


@dataclass(frozen=True)
class Batch:
    index: int
    token_ids: Tensor
    lengths: Tensor
    target_mask: Tensor


def batches(step: int) -> list[Batch]:
    """Three micro-batches with different numbers of targets, one of them with none."""
    generator = torch.Generator().manual_seed(step)
    made = []
    for index, num_targets in enumerate((5, 0, 3)):
        ids = torch.randint(61, (2, 8), generator=generator)
        mask = torch.zeros(2, 8, dtype=torch.bool)
        mask[:, 8 - num_targets :] = num_targets > 0
        made.append(Batch(index, ids, torch.tensor([8, 8]), mask))
    return made


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Callable[[], Any]]:
    """A folder with a tiny GPT-2, and how to load it with transformers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": 61, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    folder = tmp_path_factory.mktemp("reference")
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **dropouts)).save_pretrained(folder)
    return folder, lambda: transformers.GPT2LMHeadModel.from_pretrained(folder)


def learner(folder: Path) -> WholeModel:
    source = FolderWeights(folder)
    module = build(lambda config, cuts: GPT2WithLoss(config), source, Cuts.default(2)).requires_grad_(True)
    recipe = Recipe(
        initial=source.tensor,
        shapes={name: tuple(p.shape) for name, p in module.named_parameters()},
        optimizer=OptimizerConfig(weight_decay=0.1),
        seed=0,
        device=torch.device("cpu"),
    )
    return WholeModel(Single(module), Group.solo(), recipe)


def one_step(model: WholeModel, number: int) -> tuple[float, float]:
    """The loss per target, and the norm of the mean gradient."""
    results = model.compute(number, batches(number))
    targets = sum(r.target_tokens for r in results)
    norm = sum(model.prepare(number, len(results)).squared.values()) ** 0.5 / targets
    model.commit(number, Update(float(targets), min(1.0, LIMIT / (norm + 1e-6)), RATE))
    return sum(r.loss_sum for r in results) / targets, norm


def expected_step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> tuple[float, float]:
    optimizer.zero_grad()
    losses, targets = torch.zeros(()), 0
    for batch in batches(number):
        logits = model(batch.token_ids).logits[:, :-1]
        wanted = batch.token_ids[:, 1:].masked_fill(~batch.target_mask[:, 1:], -100)
        losses = losses + torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        targets += int(batch.target_mask.sum())
    (losses / targets).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
    optimizer.step()
    return float(losses.detach() / targets), float(norm)


def test_all_weights_train_as_with_transformers_and_torchs_adamw(reference: tuple[Path, Callable[[], Any]]) -> None:
    folder, load = reference
    ours, theirs = learner(folder), load()
    ours.open(None)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=RATE, weight_decay=0.1)
    for number in (1, 2, 3):
        assert one_step(ours, number) == pytest.approx(expected_step(theirs, optimizer, number), rel=1e-5)
    state = ours.state(3)
    for name, tensor in theirs.transformer.state_dict().items():
        found = state[f"adapter:{name}"]
        torch.testing.assert_close(found, tensor.t() if is_conv1d(name) else tensor, rtol=1e-3, atol=1e-4)


def test_training_goes_on_from_a_state_with_the_same_bits(reference: tuple[Path, Callable[[], Any]]) -> None:
    whole, halves = learner(reference[0]), learner(reference[0])
    whole.open(None)
    expected = [one_step(whole, number) for number in (1, 2, 3, 4)]
    halves.open(None)
    assert [one_step(halves, number) for number in (1, 2)] == expected[:2]
    saved = Checkpoint(2, {name: tensor.clone() for name, tensor in halves.state(2).items()}, {})
    one_step(halves, 3)
    halves.open(lambda: saved)
    assert [one_step(halves, number) for number in (3, 4)] == expected[2:]


def test_a_start_from_the_beginning_after_some_steps_is_a_new_start(reference: tuple[Path, Callable[[], Any]]) -> None:
    model = learner(reference[0])
    model.open(None)
    first = one_step(model, 1)
    model.open(None)
    assert one_step(model, 1) == first


def test_a_checkpoint_of_another_shape_is_refused(reference: tuple[Path, Callable[[], Any]]) -> None:
    model = learner(reference[0])
    state = model.state(0) | {"adapter:ln_f.bias": torch.zeros(3)}
    with pytest.raises(CheckpointError, match=r"ln_f\.bias is \(3,\)"):
        model.open(lambda: Checkpoint(0, state, {}))
