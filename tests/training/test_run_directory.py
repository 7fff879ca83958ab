from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torso.errors import RunDirectoryError
from torso.records import EvaluationRecord
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


def test_a_second_writer_is_told_who_holds_the_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "", 1)
    with run.lock(), pytest.raises(RunDirectoryError, match="written by process"), run.lock():
        pass
    with run.lock():
        pass


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "", 1)
    code = f"import fcntl,os; f=open({str(tmp_path / 'a' / 'lock')!r},'a+'); fcntl.flock(f,2); os.kill(os.getpid(),9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with run.lock():
        pass


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
