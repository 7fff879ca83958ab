from __future__ import annotations

import math

import pytest

from torso.errors import ConfigError
from torso.training.config import ScheduleConfig, TrainingConfig
from torso.training.schedule import check_target, learning_rate


def test_the_rate_rises_linearly_and_then_stays() -> None:
    config = ScheduleConfig(learning_rate=0.4, warmup_steps=4)
    assert [learning_rate(config, s, 100) for s in (1, 2, 4, 5, 999)] == [0.1, 0.2, 0.4, 0.4, 0.4]


def test_linear_falls_to_its_share_at_the_horizon() -> None:
    config = ScheduleConfig(learning_rate=1.0, schedule="linear", horizon_epochs=2, final_share=0.1)
    assert learning_rate(config, 100, 100) == pytest.approx(0.55)
    assert learning_rate(config, 200, 100) == pytest.approx(0.1)


def test_cosine_is_half_way_at_half_time() -> None:
    config = ScheduleConfig(learning_rate=1.0, schedule="cosine", horizon_epochs=1)
    assert learning_rate(config, 50, 100) == pytest.approx(0.5)
    assert learning_rate(config, 25, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_a_falling_schedule_needs_a_horizon_and_is_never_stretched() -> None:
    with pytest.raises(ConfigError, match="horizon"):
        ScheduleConfig(schedule="cosine")
    with pytest.raises(ConfigError, match="past the linear schedule's horizon"):
        check_target(ScheduleConfig(schedule="linear", horizon_epochs=2), 3)
    check_target(ScheduleConfig(), 1000)


def test_batch_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="no multiple"):
        TrainingConfig(global_batch_size=10, micro_batch_size=4)
