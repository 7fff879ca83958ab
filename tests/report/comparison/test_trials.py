from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from torso.errors import RunDirectoryError
from torso.report.comparison.read import read_comparison
from torso.report.comparison.trials import Trial, trials


def test_single_runs_once_whatever_the_numbers_of_processes() -> None:
    names = [trial.name for trial in trials(["single", "ddp"], ["mini", "models/other"], [1, 2])]
    assert names == ["mini-single-1", "mini-ddp-1", "mini-ddp-2", "other-single-1", "other-ddp-1", "other-ddp-2"]


def test_figures_of_an_epoch_leave_warm_up_out_of_time_and_throughput_alone(
    tmp_path: Path, make_comparison: Callable[..., Path]
) -> None:
    comparison = read_comparison(make_comparison(tmp_path / "a"))
    result = comparison.results[Trial(model="mini", strategy="split", num_processes=2)]
    first, second = result.epochs
    assert (first.num_steps, first.warm_up_seconds, second.warm_up_seconds) == (4, 14.0, 0.0)
    assert first.seconds == pytest.approx(3 * 1.4)
    assert first.real_tokens_per_second == pytest.approx((80 + 90 + 80) / (3 * 1.4))
    assert second.padded_tokens_per_second == pytest.approx(100 / 1.4)
    assert first.loss == pytest.approx((4.9 + 4.8 + 4.7 + 4.6) / 4)
    assert (first.grad_norm_mean, first.grad_norm_max) == (pytest.approx((3 + 4 + 2 + 3) / 4), 4.0)
    assert (first.memory_bytes, first.memory_sum_bytes) == (500_000_000, 900_000_000)


def test_totals_add_up_to_the_wall_clock(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    comparison = read_comparison(make_comparison(tmp_path / "a"))
    for result in comparison.results.values():
        parts = result.seconds + result.warm_up_seconds + result.save_seconds + result.evaluation_seconds
        assert (result.save_seconds, result.evaluation_seconds) == (0.75, 3.0)
        assert parts + result.other_seconds == pytest.approx(60.0)


def test_throughput_is_unknown_when_all_steps_warm_up(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    comparison = read_comparison(make_comparison(tmp_path / "a", ["single"], warm_up_steps=8))
    (result,) = comparison.results.values()
    assert math.isnan(result.real_tokens_per_second)
    assert math.isnan(result.epochs[0].padded_tokens_per_second)


def test_losses_agree_within_the_tolerance_only(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    for number, (shift, agrees) in enumerate([(0.0, True), (5e-5, True), (2e-4, False), (math.nan, False)]):
        path = make_comparison(tmp_path / str(number), ["single", "ddp"], shifts={"ddp": shift})
        comparison = read_comparison(path)
        assert comparison.agrees is agrees
        if math.isfinite(shift):
            assert comparison.differences("mini") == pytest.approx([shift / (1 + shift)] * 2)


def test_agreement_is_not_judged_where_it_is_not_promised(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    settings = {"dtype": "bf16", "dropout": 0.0, "adapter_dropout": 0.0}
    path = make_comparison(tmp_path / "a", shifts={"ddp": 0.1}, settings=settings)
    assert read_comparison(path).agrees is None
    path = make_comparison(tmp_path / "b", shifts={"ddp": 0.1}, settings=settings | {"dtype": "fp32", "dropout": 0.1})
    assert read_comparison(path).agrees is None
    assert read_comparison(make_comparison(tmp_path / "c", ["single"])).agrees is None


def test_a_trial_without_an_end_has_not_been_run(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    path = make_comparison(tmp_path / "a", ["single", "ddp"])
    (path / "trials/mini-ddp-2.json").unlink()
    comparison = read_comparison(path)
    assert [result.state for result in comparison.results.values()] == ["done", "not run yet"]


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no comparison"):
        read_comparison(tmp_path)
    (tmp_path / "request.json").write_text('{"strategies": ["single"]}')
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        read_comparison(tmp_path)
