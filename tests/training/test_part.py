from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from torso.errors import CheckpointError, GroupError, StateLostError
from torso.parallel.group import Group
from torso.training.config import OptimizerConfig
from torso.training.part import Norms, TrainablePart, Update, fingerprint

SHAPES = {"h.0.lora_A": (2, 3), "h.0.lora_B": (4, 2), "h.0.magnitude": (4,)}


def a_part(weight_decay: float = 0.0) -> TrainablePart:
    generator = torch.Generator().manual_seed(0)
    parameters = {n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in SHAPES.items()}
    return TrainablePart(parameters, OptimizerConfig(weight_decay=weight_decay))


def gradients(index: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + index)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def test_updates_equal_torchs_adamw_bit_for_bit() -> None:
    part = a_part(weight_decay=0.1)
    reference = [nn.Parameter(p.detach().clone()) for p in part.parameters.values()]
    optimizer = torch.optim.AdamW(reference, lr=0.01, weight_decay=0.1, foreach=False)
    for step in range(4):
        grads = [gradients(10 * step + i) for i in range(3)]
        for i, g in enumerate(grads):
            part.keep(i, g)
        part.combine(3, Group.solo())
        part.apply(Update(divisor=7.0, clip_factor=0.5, learning_rate=0.01))
        for j, parameter in enumerate(reference):
            parameter.grad = (grads[0][j] + grads[1][j] + grads[2][j]) / 7.0 * 0.5
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(part.parameters.values(), reference, strict=True))


def test_gradients_are_added_by_index_whatever_order_they_came_in() -> None:
    first, second = a_part(), a_part()
    for i in (0, 1, 2, 3):
        first.keep(i, gradients(i))
    for i in (2, 0, 3, 1):
        second.keep(i, gradients(i))
    assert first.combine(4, Group.solo()) == second.combine(4, Group.solo())


def test_the_squared_norm_is_added_in_float64() -> None:
    part = a_part()
    part.keep(0, gradients(0))
    norms = part.combine(1, Group.solo())
    assert norms.squared == {n: float((g.double() ** 2).sum()) for n, g in zip(SHAPES, gradients(0), strict=True)}


def combine_on(world_size: int, held: list[list[int]], num: int, tags: list[int] | None = None) -> list[object]:
    store, out = dist.HashStore(), [None] * world_size

    def run(rank: int) -> None:
        part = a_part()
        for i in held[rank]:
            part.keep(i, gradients(i))
        try:
            norms = part.combine(
                num, Group.local(store, rank, world_size), tag=(tags or [1] * world_size)[rank : rank + 1]
            )
            part.apply(Update(3.0, 1.0, 0.1))
            out[rank] = (norms, part.fingerprint(1))  # type: ignore[call-overload]
        except (StateLostError, GroupError) as error:
            out[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(out)


@pytest.mark.parametrize(
    "held", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[3, 1], [0, 1, 2]], [[], [0, 1, 2, 3]], [[0], [3], [2, 1]]]
)
def test_any_number_of_ranks_gives_the_same_bits_and_an_index_held_twice_counts_once(held: list[list[int]]) -> None:
    alone = combine_on(1, [[0, 1, 2, 3]], 4)[0]
    assert all(result == alone for result in combine_on(len(held), held, 4))


def test_missing_micro_batches_are_named() -> None:
    for error in combine_on(2, [[0], [3]], 5):
        assert isinstance(error, StateLostError)
        assert "[1, 2, 4]" in str(error)


def test_ranks_that_came_to_different_steps_notice_it() -> None:
    assert all(isinstance(e, GroupError) for e in combine_on(2, [[0], [1]], 2, tags=[4, 5]))


def test_a_skipped_update_changes_nothing() -> None:
    part = a_part()
    before = part.fingerprint(0)
    part.keep(0, gradients(0))
    part.combine(1, Group.solo())
    part.apply(Update(1.0, 1.0, 0.1, skip=True))
    assert part.fingerprint(0) == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_reported(bad: float) -> None:
    part = a_part()
    part.keep(0, [torch.full(s, bad) for s in SHAPES.values()])
    assert not part.combine(1, Group.solo()).finite


def test_a_saved_state_continues_with_the_same_bits() -> None:
    def train(part: TrainablePart, steps: range) -> None:
        for step in steps:
            part.keep(0, gradients(step))
            part.combine(1, Group.solo())
            part.apply(Update(2.0, 1.0, 0.01))

    whole, first, second = a_part(), a_part(), a_part()
    train(whole, range(6))
    train(first, range(3))
    second.load(first.state())
    train(second, range(3, 6))
    assert second.fingerprint(6) == whole.fingerprint(6)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    part = a_part()
    before = part.fingerprint(0)
    state = {**part.state(), "adapter:h.0.magnitude": torch.zeros(5)}
    with pytest.raises(CheckpointError, match=r"h\.0\.magnitude is \(5,\).*expected \(4,\)"):
        part.load(state)
    assert part.fingerprint(0) == before


def test_the_fingerprint_sees_names_shapes_bits_and_step() -> None:
    base = {"a": torch.zeros(4)}
    others = [
        fingerprint({"b": torch.zeros(4)}, 1),
        fingerprint({"a": torch.zeros(2, 2)}, 1),
        fingerprint({"a": torch.tensor([0.0, 0.0, 0.0, -0.0])}, 1),
        fingerprint({"a": torch.zeros(4, dtype=torch.int32)}, 1),
        fingerprint(base, 2),
    ]
    assert len({fingerprint(base, 1), *others}) == 6


def test_norms_of_nothing_are_empty() -> None:
    part = TrainablePart({}, OptimizerConfig())
    part.keep(0, [torch.zeros(0)])
    assert part.combine(1, Group.solo()) == Norms({}, True)
