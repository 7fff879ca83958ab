"""Memory by hand, from the published counts of GPT-2 small, and how it grows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torso.planner.hardware import device_of
from torso.planner.memory import loss_bytes, memory
from torso.planner.setting import Setting, refusal

Make = Callable[..., Setting]
N = 124_439_808
"""Parameters of GPT-2 small as published."""
WTE = 50_257 * 768
BLOCK = 7_087_872


def test_a_single_process_that_trains_everything_holds_16_bytes_a_parameter(setting: Make) -> None:
    found = memory(setting(adapter=None), "single")["single"]
    assert found.weights + found.gradients + found.moments == 16 * N


def test_two_shards_hold_half_of_the_states_each(setting: Make) -> None:
    found = memory(setting(adapter=None, devices=2), "fsdp")["fsdp"]
    assert found.weights + found.gradients + found.moments == 8 * N
    assert found.communication > 0


def test_the_largest_tensors_update_comes_on_top_of_what_malloc_keeps_of_activations(setting: Make) -> None:
    single, ddp = (memory(setting(adapter=None, devices=2), name)[name] for name in ("single", "ddp"))  # type: ignore[arg-type]
    assert single.step == 16 * N + single.activations + 16 * WTE  # a gradient in float64, and its square
    assert ddp.step == 16 * N + ddp.activations + 12 * WTE


def test_gradients_come_as_activations_go_where_a_rank_has_one_micro_batch(setting: Make) -> None:
    one, two = (memory(setting(adapter=None, global_batch_size=b), "single")["single"] for b in (4, 8))
    assert (one.earlier, two.earlier) == (0, 4 * N)
    assert memory(setting(adapter=None, global_batch_size=4, devices=2), "ddp")["ddp"].earlier == 4 * N  # buckets


def test_fsdp_begins_with_the_embeddings_twice(setting: Make) -> None:
    found = memory(setting(devices=2), "fsdp")["fsdp"]
    assert found.beginning - found.communication == 4 * (50_257 + 1024) * 768


def test_an_adapters_rank_holds_the_frozen_weights_once(setting: Make) -> None:
    trained = 12 * 8 * (768 + 2304 + 768 + 768 + 768 + 3072 + 3072 + 768)
    found = memory(setting(), "single")["single"]
    assert found.weights == 4 * N + 4 * trained
    assert found.moments == 8 * trained


def test_client_and_worker_share_the_blocks_out(setting: Make) -> None:
    parties = memory(setting(), "split")
    trained = 8 * (768 + 2304 + 768 + 768 + 768 + 3072 + 3072 + 768)
    assert parties["worker"].weights == 4 * 8 * (BLOCK + trained)
    assert parties["client"].weights == 4 * (N + WTE - 8 * BLOCK) + 4 * 4 * trained


def test_frozen_weights_in_bf16_take_half(setting: Make) -> None:
    fp32, bf16 = (memory(setting(dtype=d), "single")["single"] for d in ("fp32", "bf16"))
    adapters = fp32.moments / 2
    assert bf16.weights - adapters == (fp32.weights - adapters) / 2
    assert bf16.activations == fp32.activations / 2


def test_logits_are_made_256_rows_at_a_time(setting: Make) -> None:
    few, many = setting(micro_batch_size=1, tokens=101), setting(micro_batch_size=16, tokens=1024)
    assert loss_bytes(few) == 2 * 4 * 100 * 50_257
    assert loss_bytes(many) == 3 * 4 * 256 * 50_257
    trained = loss_bytes(setting(adapter=None, micro_batch_size=16, tokens=1024))
    assert trained - loss_bytes(many) == 4 * WTE


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "hsdp", "split"])
@pytest.mark.parametrize(("name", "low", "high"), [("tokens", 64, 256), ("micro_batch_size", 2, 8)])
def test_longer_sequences_and_larger_micro_batches_take_more(
    strategy: str, name: str, low: int, high: int, setting: Make
) -> None:
    for trained in ({}, {"adapter": None}):
        if refusal(setting(**trained), strategy):  # type: ignore[arg-type]
            continue
        small = memory(setting(window=1, **trained, **{name: low}), strategy)  # type: ignore[arg-type]
        large = memory(setting(window=1, **trained, **{name: high}), strategy)  # type: ignore[arg-type]
        assert all(large[party].activations > small[party].activations for party in small)
        # a save of full training can take more than either step
        assert all(large[party].total >= small[party].total for party in small)


def test_backward_passes_that_wait_take_memory_up_to_the_window(setting: Make) -> None:
    one, four, eight = (memory(setting(window=w), "split")["client"].activations for w in (1, 4, 8))
    assert one < four == eight  # there are four micro-batches


def test_on_a_gpu_the_kept_gradients_stay_on_the_host(setting: Make) -> None:
    found = memory(setting(device=device_of("t4")), "single")["single"]
    assert found.copies == 0
    assert found.gradients == found.moments / 2


def test_hsdp_shards_among_half_of_four_devices(setting: Make) -> None:
    eight = setting(adapter=None, devices=4)
    assert eight.shards == 2
    assert memory(eight, "hsdp")["hsdp"].moments == 8 * N / 2
    assert (setting(devices=9).shards, setting(devices=8, shard_size=2).shards) == (3, 2)  # as `torso train` has it
    assert memory(eight, "fsdp")["fsdp"].moments == 8 * N / 4


def test_a_split_of_full_training_or_of_one_device_is_refused(setting: Make) -> None:
    assert "adapters only" in refusal(setting(adapter=None), "split")
    assert "two devices" in refusal(setting(devices=1), "split")
    assert refusal(setting(), "split") == ""


def test_a_save_takes_the_whole_state_on_the_rank_that_writes_where_it_is_in_shares(setting: Make) -> None:
    small = setting(adapter=None, micro_batch_size=1, tokens=2, devices=8)
    found = {name: memory(small, name)[name] for name in ("single", "ddp", "fsdp")}  # type: ignore[arg-type]
    assert found["single"].saving == found["ddp"].saving == 0  # what is there is written as it is
    assert found["fsdp"].total == found["fsdp"].held + (4 + 8) * N / 8 + 12 * N
    assert memory(setting(adapter=None, devices=8, device=device_of("t4")), "fsdp")["fsdp"].saving == 0
