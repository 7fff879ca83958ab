from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torso.errors import GroupError
from torso.parallel.group import Group


def on_ranks(world_size: int, work: Callable[[Group], Any], timeout_s: float = 30.0) -> list[Any]:
    """What `work` returns on each rank of a group of threads."""
    store, results = dist.HashStore(), [None] * world_size

    def run(rank: int) -> None:
        group = Group.local(store, rank, world_size, timeout_s)
        try:
            results[rank] = work(group)
        except GroupError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_gathered_tensors_keep_every_bit() -> None:
    values = torch.tensor([-0.0, float("nan"), float("inf"), 1e-45])
    for parts in on_ranks(3, lambda group: group.all_gather(values * 1)):
        for part in parts:
            assert torch.equal(part.view(torch.int32), values.view(torch.int32))


def test_ranks_may_give_different_numbers_of_integers() -> None:
    for lists in on_ranks(3, lambda group: group.all_gather_ints(list(range(group.rank)))):
        assert lists == [[], [0], [0, 1]]


@pytest.mark.parametrize("data", [b"", b"abc", bytes(range(256)) * 1000])
def test_every_rank_gets_the_sources_bytes(data: bytes) -> None:
    for got in on_ranks(2, lambda group: group.broadcast_bytes(data if group.rank == 0 else None)):
        assert got == data


def test_a_group_of_one_needs_no_network() -> None:
    group = Group.solo()
    assert group.all_gather_ints([1, 2]) == [[1, 2]]
    assert group.broadcast_bytes(b"x") == b"x"


def test_a_rank_that_stays_away_is_a_group_error() -> None:
    def work(group: Group) -> None:
        if group.rank == 0:
            group.barrier()

    failure, _ = on_ranks(2, work, timeout_s=2.0)
    assert isinstance(failure, GroupError)
