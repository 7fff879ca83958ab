from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

from torso.errors import RefusedError, StateLostError
from torso.parallel.group import Group
from torso.training.agreement import Vote, on_leader, vote


def both(work: Any) -> list[Any]:
    store, out = dist.HashStore(), [None, None]

    def run(rank: int) -> None:
        try:
            out[rank] = work(Group.local(store, rank, 2))
        except (StateLostError, RefusedError) as error:
            out[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def test_the_gravest_vote_decides() -> None:
    assert both(lambda group: vote(group, [Vote.OK, Vote.ROLL_BACK][group.rank])) == [Vote.ROLL_BACK] * 2


def test_only_the_leader_works_and_everyone_has_the_result() -> None:
    def work(group: Group) -> dict[str, Any]:
        return on_leader(group, lambda: {"rank": group.rank, "value": 0.1})

    assert both(work) == [{"rank": 0, "value": 0.1}] * 2


def test_the_leaders_failure_is_everybodys() -> None:
    def fail() -> dict[str, Any]:
        raise StateLostError("gone", "seed again", "unknown_job")

    seen = []
    for error in both(lambda group: on_leader(group, fail)):
        assert isinstance(error, StateLostError)
        seen.append(error.told)
        assert (error.message, error.remedy, error.code) == ("gone", "seed again", "unknown_job")

    assert seen == [False, True]  # one of them says it


def test_alone_the_error_is_raised_too() -> None:
    def fail() -> dict[str, Any]:
        raise RefusedError("no")

    with pytest.raises(RefusedError):
        on_leader(Group.solo(), fail)
