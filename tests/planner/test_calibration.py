from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from torso.adapters.config import AdapterConfig
from torso.errors import ConfigError
from torso.model.config import SIZES
from torso.planner.calibration import Calibration, Entry, read_calibration
from torso.planner.costs import Costs, Line
from torso.planner.setting import Setting

Make = Callable[..., Setting]
LINE = Line(latency_s=1e-4, seconds_per_byte=1e-9)
COSTS = Costs(
    block_forward=0.1, block_backward=0.2, loss=0.3, update=LINE, combine=LINE, all_reduce=LINE, all_gather=LINE,
    reduce_scatter=LINE, wire=LINE, wire_work=LINE, step=0.01,
)  # fmt: skip
WRONG_BYTES = '{"version": 2, "entries": [], "machine": {}, "import_bytes": "much"}'


def calibration(*entries: Entry) -> Calibration:
    return Calibration(machine={"cores": "2"}, import_bytes=2e8, entries=entries)


def test_what_was_measured_is_predicted_as_measured(setting: Make) -> None:
    found = calibration(Entry.of(setting(), 2, 1, COSTS)).costs(setting(), "ddp")
    assert found == COSTS


def test_other_lengths_are_scaled_by_flops(setting: Make) -> None:
    found = calibration(Entry.of(setting(tokens=64), 1, 1, COSTS)).costs(setting(tokens=128), "single")

    # products double, attention grows fourfold: by hand, GPT-2 small with LoRA of rank 8 on all layers
    def flops(tokens: int) -> int:
        return tokens * (2 * (12 * 768**2 + 8 * (768 * 9 + 3072 + 2304)) + 4 * 768 * tokens)

    assert found.block_forward == pytest.approx(0.1 * flops(128) / flops(64))
    assert found.update == LINE


def test_the_nearest_measurement_is_taken(setting: Make) -> None:
    other = dataclasses.replace(COSTS, block_forward=9.0)
    far = Entry.of(setting(shape=SIZES["gpt2-xl"]), 1, 1, other)
    near = Entry.of(setting(tokens=100), 1, 1, COSTS)
    assert calibration(far, near).costs(setting(), "single").loss < 1.0
    found = calibration(far, near).costs(setting(adapter=AdapterConfig(lora_rank=16)), "single")
    assert found.block_forward < 1.0


def test_a_number_of_processes_that_was_not_measured_is_refused(setting: Make) -> None:
    with pytest.raises(ConfigError, match=r"nothing of 2 × 1 threads.*--calibrate"):
        calibration(Entry.of(setting(), 1, 1, COSTS)).costs(setting(), "ddp")


def test_what_was_measured_with_all_weights_trained_says_nothing_of_adapters_nor_of_their_wire(setting: Make) -> None:
    full = calibration(Entry.of(setting(adapter=None), 2, 1, COSTS))
    with pytest.raises(ConfigError, match="with adapters"):
        full.costs(setting(), "split")


def test_what_processes_hold_comes_from_runs_whose_ranks_had_one_micro_batch_or_several_too(setting: Make) -> None:
    several, one = setting(), setting(global_batch_size=8)
    known = calibration(Entry.of(several, 2, 1, COSTS, {"ddp": 2e6}), Entry.of(one, 2, 1, COSTS, {"ddp": 1e6}))
    assert known.held(several, "ddp")["ddp"] - known.held(one, "ddp")["ddp"] == 1e6
    assert known.overheads(2, full=False, several=True) == {"ddp": 2e6}
    assert known.overheads(2, full=True, several=True) is None


def test_a_file_gives_back_what_was_kept_and_new_entries_replace_old_ones(setting: Make, tmp_path: Path) -> None:
    first = calibration(Entry.of(setting(), 1, 1, COSTS), Entry.of(setting(), 2, 1, COSTS))
    newer = first.with_entries([Entry.of(setting(), 2, 1, dataclasses.replace(COSTS, loss=0.5))])
    (tmp_path / "c.json").write_text(newer.to_json())
    assert read_calibration(tmp_path / "c.json") == newer
    assert [entry.costs.loss for entry in newer.entries] == [0.3, 0.5]


@pytest.mark.parametrize(
    "content", [None, "{", "{}", '{"version": 0}', '{"version": 2, "entries": [1]}', "[]", WRONG_BYTES]
)
def test_a_file_that_is_none_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"c\.json.*--calibrate"):
        read_calibration(path)
