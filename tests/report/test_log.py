from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torso.errors import RunDirectoryError
from torso.records import EpochRecord, StepRecord, to_line
from torso.report.log import find_setting, flatten, read_records, read_run


def test_a_run_is_read_whole(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(tmp_path / "a", num_steps=20))
    assert [s.step for s in run.steps] == list(range(1, 21))
    assert [e.epoch for e in run.epochs] == [1, 2]
    assert run.name == "a"
    assert run.state["epochs"] == 2
    assert run.info["arithmetic"]["threads"] == "1"
    assert run.before is not None
    assert run.before.record.perplexity == 48.2
    assert run.after is not None
    assert len(run.after.examples) == 12
    assert run.bytes_sent == 20 * 1_474_560
    assert run.seconds == pytest.approx(3.6)


def test_a_cut_last_line_is_left_out_without_a_word(tmp_path: Path, step: Callable[..., StepRecord]) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text(to_line(step(1)) + to_line(step(2))[:40])
    records, bad = read_records(log)
    assert [r.step for r in records] == [1]
    assert bad == 0


def test_a_broken_line_in_the_middle_is_counted(tmp_path: Path, step: Callable[..., StepRecord]) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text(to_line(step(1)) + "{broken\n" + "[1]\n" + '{"kind": "moon"}\n\n' + to_line(step(2)))
    records, bad = read_records(log)
    assert [r.step for r in records] == [1, 2]
    assert bad == 3


def test_a_step_that_was_done_again_counts_once(
    tmp_path: Path,
    make_run: Callable[..., Path],
    step: Callable[..., StepRecord],
    epoch: Callable[..., EpochRecord],
) -> None:
    path = make_run(tmp_path / "a", num_steps=2)
    with open(path / "metrics.jsonl", "a") as file:
        file.write(to_line(step(2, loss=9.0)) + to_line(epoch(2, 2)))
    run = read_run(path)
    assert [s.step for s in run.steps] == [1, 2]
    assert run.steps[1].loss == 9.0
    assert len(run.epochs) == 2


def test_a_run_that_has_only_begun_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"job": "x", "epochs": 1}')
    run = read_run(tmp_path)
    assert run.steps == ()
    assert run.after is None
    assert run.subset is None


def test_a_directory_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no run"):
        read_run(tmp_path)


def test_damaged_scores_are_left_out(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    path = make_run(tmp_path / "a", num_steps=2)
    (path / "evaluation" / "test" / "scores.json").write_text('{"step": 2, "subset"')
    assert read_run(path).after is None


def test_first_inputs_alone_do_not_hide_what_the_whole_set_gave(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    path = make_run(tmp_path / "a", num_steps=2)
    whole, part = path / "evaluation" / "test", path / "evaluation" / "test-first1"
    part.mkdir()
    scores = json.loads((whole / "scores.json").read_text())
    (part / "scores.json").write_text(json.dumps(scores | {"partial": True, "perplexity": 9.0}))
    after = read_run(path).after
    assert after is not None
    assert (after.record.partial, after.record.perplexity) == (False, 1.52)
    (whole / "scores.json").unlink()
    after = read_run(path).after
    assert after is not None
    assert after.record.partial


def test_settings_flatten_and_are_found_at_any_depth() -> None:
    settings = {"model": {"model": "mini", "cuts": [2, 4]}, "training": {"exact": True}}
    assert flatten(settings) == {"model.model": "mini", "model.cuts": "2, 4", "training.exact": "true"}
    assert find_setting(settings, "model") == "mini"
    assert find_setting(settings, "absent", "exact") is True
    assert find_setting(settings, "absent") is None
