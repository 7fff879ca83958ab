"""Times by hand, and how they grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from torso.errors import ConfigError
from torso.planner.costs import Costs, Line, nominal, over
from torso.planner.counts import trainable_parameters
from torso.planner.hardware import UTILISATION, Link, device_of, link_of
from torso.planner.setting import Setting
from torso.planner.times import Pipeline, step_seconds

Make = Callable[..., Setting]
FREE = Line(latency_s=0.0, seconds_per_byte=0.0)
COSTS = Costs(
    block_forward=1.0,
    block_backward=2.0,
    loss=5.0,
    update=FREE,
    combine=FREE,
    all_reduce=FREE,
    all_gather=FREE,
    reduce_scatter=FREE,
    wire=FREE,
    wire_work=FREE,
)


def test_a_single_process_does_all_micro_batches_one_after_the_other(setting: Make) -> None:
    assert step_seconds(setting(), "single", COSTS).total == 4 * (12 * 3.0 + 5.0)


def test_ddp_shares_them_out_and_the_busiest_rank_decides(setting: Make) -> None:
    for devices, own in ((2, 2), (3, 2), (4, 1), (5, 1)):
        assert step_seconds(setting(devices=devices), "ddp", COSTS).total == own * (12 * 3.0 + 5.0)


def test_a_rings_all_reduce_sends_every_gradient_almost_twice(setting: Make) -> None:
    full = setting(adapter=None, devices=4)
    costs = dataclasses.replace(COSTS, all_reduce=Line(latency_s=0.0, seconds_per_byte=1e-9))
    found = step_seconds(full, "ddp", costs)
    assert found.sent_bytes == 2 * 3 / 4 * 4 * 124_439_808
    assert found.communication == pytest.approx(found.sent_bytes * 1e-9)


def test_fsdp_sends_blocks_three_times_and_embeddings_twice_where_there_is_one_micro_batch(setting: Make) -> None:
    full = setting(adapter=None, devices=2, global_batch_size=8)
    blocks, others = 12 * 7_087_872, 50_257 * 768 + 1024 * 768 + 2 * 768
    assert step_seconds(full, "fsdp", COSTS).sent_bytes == (3 * blocks + 2 * others) * 4 / 2


def test_fsdp_takes_its_time_around_each_block_and_the_embeddings_by_their_bytes(setting: Make) -> None:
    costs = dataclasses.replace(COSTS, unit=Line(latency_s=1.0, seconds_per_byte=1e-6))
    found = (
        step_seconds(setting(devices=2), "fsdp", costs).compute - step_seconds(setting(devices=2), "ddp", COSTS).compute
    )
    assert found == pytest.approx(2 * (13 + 4 * 124_439_808 * 1e-6))  # two micro-batches, 12 blocks and the root


def test_hsdp_of_two_shards_sends_less_than_fsdp_of_four(setting: Make) -> None:
    full = setting(adapter=None, devices=4)
    assert step_seconds(full, "hsdp", COSTS).sent_bytes < step_seconds(full, "fsdp", COSTS).sent_bytes


def test_a_pipelines_slowest_party_decides_and_the_other_one_fills_it_once() -> None:
    pipeline = Pipeline(head_forward=1.0, body_forward=4.0, tail=2.0, body_backward=6.0, head_backward=1.0, transit=0.0)
    assert pipeline.seconds(1, 4) == 14.0
    # the worker never rests: head once, ten of its own for each, and the last head
    assert pipeline.seconds(8, 8) == 1.0 + 8 * 10.0 + 1.0
    # one at a time nothing overlaps
    assert pipeline.seconds(8, 1) == 8 * 14.0


def test_transit_is_hidden_by_a_window_and_not_without() -> None:
    pipeline = Pipeline(head_forward=1.0, body_forward=4.0, tail=2.0, body_backward=6.0, head_backward=1.0, transit=0.5)
    assert pipeline.seconds(8, 1) == 8 * (14.0 + 4 * 0.5)
    assert pipeline.seconds(8, 8) < 8 * 14.0


def test_a_split_sends_four_messages_a_micro_batch_two_of_them_by_the_client(setting: Make) -> None:
    found = step_seconds(setting(), "split", COSTS)
    assert found.sent_bytes == 4 * 2 * 4 * 128 * 768 * 4


def test_nominal_seconds_are_flops_over_the_assumed_share_of_the_peak(setting: Make) -> None:
    planned = setting(device=device_of("t4"), link=link_of("pcie3"), adapter=None)
    # 2 × 12 C² and attention's 4 C T, by hand
    forward = 4 * 128 * (2 * 12 * 768**2 + 4 * 768 * 128)
    assert nominal(planned).block_forward == pytest.approx(forward / (8.1e12 * UTILISATION))


def test_a_slow_link_makes_ddp_lose_and_a_fast_one_lets_it_win(setting: Make) -> None:
    seconds = {}
    for link in ("1Gbit/s", "nvlink3"):
        planned = setting(device=device_of("a100-40gb"), link=link_of(link), adapter=None)
        costs = nominal(planned)
        seconds[link] = {s: step_seconds(planned, s, costs).total for s in ("single", "ddp")}  # type: ignore[arg-type]
    assert seconds["1Gbit/s"]["ddp"] > seconds["1Gbit/s"]["single"]
    assert seconds["nvlink3"]["ddp"] < 0.6 * seconds["nvlink3"]["single"]


def test_a_slower_link_than_the_measured_one_slows_collectives_and_messages_only() -> None:
    slow = Link(name="1MB/s", bytes_per_second=1e6, latency_s=0.01)
    found = over(dataclasses.replace(COSTS, wire=Line(latency_s=0.001, seconds_per_byte=1e-9)), slow)
    assert found.all_reduce.seconds(1e6) == pytest.approx(1.01)
    assert found.wire.seconds(1e6) == pytest.approx(1.012)
    assert found.block_forward == COSTS.block_forward


def test_a_device_without_figures_and_a_dtype_that_it_lacks_are_refused(setting: Make) -> None:
    with pytest.raises(ConfigError, match="calibrat"):
        nominal(setting())
    with pytest.raises(ConfigError, match="bf16"):
        nominal(setting(device=device_of("t4"), link=link_of("pcie3"), dtype="bf16"))


def test_the_optimizers_time_goes_with_what_is_trained(setting: Make) -> None:
    costs = dataclasses.replace(COSTS, update=Line(latency_s=0.0, seconds_per_byte=1e-9))
    planned = setting()
    found = step_seconds(planned, "single", costs)
    assert found.update == pytest.approx(4e-9 * trainable_parameters(planned))
