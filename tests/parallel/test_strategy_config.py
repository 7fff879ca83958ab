from __future__ import annotations

import pytest

from torso.errors import ConfigError
from torso.parallel.strategy_config import StrategyConfig, shard_size


@pytest.mark.parametrize(("ranks", "expected"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (8, 4), (9, 3)])
def test_hsdp_shares_a_copy_among_half_of_the_ranks_where_that_is_more_than_one(ranks: int, expected: int) -> None:
    assert shard_size(None, ranks) == expected


@pytest.mark.parametrize(("asked", "ranks"), [(1, 4), (3, 4), (8, 4), (0, 2)])
def test_a_copy_needs_two_ranks_or_more_and_a_divisor_of_all(asked: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match=f"shard_size is {asked} with {ranks} ranks"):
        shard_size(asked, ranks)


def test_the_order_of_addition_is_named_where_it_is_not_that_of_the_micro_batches() -> None:
    assert StrategyConfig(name="ddp").describe(2) == "ddp on 2 ranks"
    assert StrategyConfig(name="hsdp").describe(4) == "hsdp on 4 ranks in copies of 2"
    assert StrategyConfig(name="fsdp", deterministic=True).describe(4) == ""
    assert StrategyConfig(name="fsdp").describe(1) == StrategyConfig().describe(1) == ""
