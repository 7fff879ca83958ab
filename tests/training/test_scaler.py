"""Loss scaling, alone and where fp16 overflows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torso.model.blocks import Block
from torso.model.config import Cuts, GPT2Config
from torso.model.stages import GPT2WithLoss
from torso.model.weights import RandomWeights, build
from torso.parallel.apply import apply
from torso.parallel.group import Group
from torso.parallel.strategy_config import StrategyConfig
from torso.training.checkpoint import SCALE, Checkpoint
from torso.training.config import OptimizerConfig
from torso.training.part import Update
from torso.training.scaler import GROW_AFTER, INITIAL, LARGEST, LossScaler
from torso.training.whole import Recipe, WholeModel

SHAPE = GPT2Config(vocab_size=61, n_positions=16, n_embd=16, n_layer=1, n_head=2)


@dataclass(frozen=True)
class Batch:
    index: int
    token_ids: Tensor
    lengths: Tensor
    target_mask: Tensor


BATCH = Batch(0, torch.arange(8)[None], torch.tensor([8]), torch.arange(8)[None] > 3)


def learner() -> WholeModel:
    source = RandomWeights(SHAPE, 1)
    module = build(lambda config, cuts: GPT2WithLoss(config), source, Cuts.default(1)).requires_grad_(True)
    units = [unit for unit in module.modules() if isinstance(unit, Block)]
    strategy = apply(StrategyConfig(), module, units, Group.solo(), torch.device("cpu"), torch.float16)
    recipe = Recipe(
        initial=source.tensor,
        shapes={name: tuple(p.shape) for name, p in module.named_parameters()},
        optimizer=OptimizerConfig(),
        seed=0,
        device=torch.device("cpu"),
        scaled=True,
    )
    return WholeModel(strategy, Group.solo(), recipe)


def one_step(model: WholeModel, number: int) -> bool:
    """Whether the update was made."""
    model.compute(number, [BATCH])
    norms = model.prepare(number, 1)
    model.commit(number, Update(4.0, 1.0, 0.01, skip=not norms.finite))
    return norms.finite


def test_an_overflow_halves_the_factor_and_many_good_updates_double_it() -> None:
    scaler = LossScaler()
    scaler.update(overflowed=True)
    assert scaler.scale == INITIAL / 2
    for _ in range(GROW_AFTER - 1):
        scaler.update(overflowed=False)
    assert scaler.scale == INITIAL / 2
    scaler.update(overflowed=False)
    assert scaler.scale == INITIAL


def test_the_factor_stays_in_its_bounds_and_goes_on_from_its_state() -> None:
    scaler = LossScaler()
    for _ in range(40):
        scaler.update(overflowed=True)
    assert scaler.scale == 1.0
    scaler.load(torch.tensor([LARGEST, GROW_AFTER - 1.0], dtype=torch.float64))
    again = LossScaler()
    again.load(scaler.state())
    again.update(overflowed=False)
    assert again.scale == LARGEST


def test_an_update_that_overflows_changes_nothing_but_the_factor() -> None:
    model = learner()
    model.open(None)
    assert one_step(model, 1)
    before = model.state(1)
    model.open(lambda: Checkpoint(1, before | {SCALE: torch.tensor([2.0**24, 0.0], dtype=torch.float64)}, {}))
    assert not one_step(model, 2)
    after = model.state(2)
    assert float(after.pop(SCALE)[0]) == 2.0**23
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
