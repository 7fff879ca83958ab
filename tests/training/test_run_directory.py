from __future__ import annotations

import os
from pathlib import Path

import pytest

from torso.errors import RunDirectoryError
from torso.records import EvaluationRecord, StepRecord
from torso.training.run_directory import MetricsLog, RunDirectory


def a_record(step: int) -> EvaluationRecord:
    return EvaluationRecord(step=step, subset="dev", adapted=True, perplexity=2.0, scores={})


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "a", "", 1)
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        RunDirectory.create(tmp_path / "a", "", 1)


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        RunDirectory.create(tmp_path, "", 1)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no run"):
        RunDirectory(tmp_path)


def test_the_generation_is_on_disk_before_it_is_used(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "", 1)
    assert [run.raise_generation(), run.raise_generation()] == [1, 2]
    assert RunDirectory(tmp_path / "a").state.generation == 2


def test_the_target_is_raised_durably_and_the_job_keeps_its_name(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "", 1)
    job = run.state.job
    run.set_epochs(2)
    assert (RunDirectory(tmp_path / "a").state.epochs, RunDirectory(tmp_path / "a").state.job) == (2, job)


def test_of_two_commands_that_make_one_run_only_the_first_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(tmp_path / "a", "first", 1)
    monkeypatch.setattr(RunDirectory, "check_unused", staticmethod(lambda path: None))
    with pytest.raises(RunDirectoryError, match="being made by another process"):
        RunDirectory.create(tmp_path / "a", "second", 1)
    assert (run.path / "config.toml").read_text() == "first"


def test_a_new_run_is_refused_where_one_is_written_and_told_by_whom(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "", 1)
    with run.lock(), pytest.raises(RunDirectoryError, match=f"written by process {os.getpid()} on"):
        RunDirectory.check_unused(tmp_path / "a")


def test_the_log_is_cut_back_to_a_step(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.append(a_record(step))
    log.cut_back(2)
    assert [record.step for record in log.read()] == [1, 2]


def test_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.append(a_record(1))
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "evalu')
    assert [record.step for record in log.read()] == [1]


def test_a_line_cut_by_a_kill_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "evalu', encoding="utf-8")
    log = MetricsLog(tmp_path)
    log.append(a_record(1))
    log.append(a_record(2))
    assert [record.step for record in log.read()] == [1, 2]


@pytest.mark.parametrize("rubbish", [b"\xff\xfe{}", b"7", b"[]", b"null", b"\x00" * 512])
def test_rubbish_in_the_log_after_a_power_loss_is_left_out(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(rubbish + b"\n")
    log = MetricsLog(tmp_path)
    log.append(a_record(1))
    log.cut_back(1)
    assert [record.step for record in log.read()] == [1]


def test_some_kinds_of_lines_are_read_alone(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.append(a_record(1))
    assert [len(log.read(kind)) for kind in (EvaluationRecord, StepRecord)] == [1, 0]


def test_files_that_a_killed_writer_left_half_done_go_when_the_next_one_comes(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "", 1)
    scores = run.path / "evaluation" / "dev-base"
    scores.mkdir(parents=True)
    for path in (run.path / ".metrics.jsonl.tmp-9", scores / ".outputs.jsonl.tmp-9", run.path / ".report.html.tmp-9"):
        path.write_text("half")
    with run.lock():
        assert [path.name for path in run.path.rglob(".*")] == [".report.html.tmp-9"]
