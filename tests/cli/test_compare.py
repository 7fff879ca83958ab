from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from torso.cli import bench as benches
from torso.cli import processes
from torso.cli.bench import Bench, differences, look, worker_devices
from torso.cli.compare import chosen_strategies
from torso.cli.main import main
from torso.config import RunConfig
from torso.errors import ConfigError, RunDirectoryError, TorsoError
from torso.report.comparison.trials import Trial

REQUEST: dict[str, Any] = {"steps": {"mini": 8}, "settings": {"seed": 0, "epochs": 2}, "world_sizes": [2]}


def make_bench(**changes: Any) -> Bench:
    config = dataclasses.replace(RunConfig(evaluate="none"), **changes)
    return Bench(["single", "split"], ["mini"], [2], None, 1, config)


class Trainer:
    """Stands for `torso train`: keeps the names of what it was asked to train, and ends as it is told."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)
        self.names: list[str] = []

    def __call__(self, folder: Path, trial: Trial, config: RunConfig, workers: int, steps: int) -> None:
        self.names.append(trial.name)
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end


def state_of(folder: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"trials/{name}.json").read_text())
    return document


def test_what_is_done_is_kept_and_what_was_interrupted_is_done_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(None, KeyboardInterrupt())
    monkeypatch.setattr(benches, "_train", trainer)
    with pytest.raises(KeyboardInterrupt):
        make_bench().run(tmp_path, REQUEST)
    assert not (tmp_path / "trials/mini-split-2.json").exists()
    make_bench().run(tmp_path, REQUEST)
    assert trainer.names == ["mini-single-1", "mini-split-2", "mini-split-2"]
    assert state_of(tmp_path, "mini-split-2")["state"] == "done"


def test_a_strategy_that_fails_stops_no_other_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(TorsoError("exit code 1", "Its last words: no memory"))
    monkeypatch.setattr(benches, "_train", trainer)
    make_bench().run(tmp_path, REQUEST)
    assert state_of(tmp_path, "mini-single-1")["state"] == "failed"
    assert "no memory" in state_of(tmp_path, "mini-single-1")["reason"]
    assert state_of(tmp_path, "mini-split-2")["state"] == "done"
    make_bench().run(tmp_path, REQUEST)
    assert trainer.names == ["mini-single-1", "mini-split-2", "mini-single-1"]


def test_a_split_of_one_process_does_not_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "_train", Trainer())
    Bench(["split"], ["mini"], [1], None, 1, RunConfig()).run(tmp_path, REQUEST)
    ended = state_of(tmp_path, "mini-split-1")
    assert ended["state"] == "not applicable"
    assert "at least one of each" in ended["reason"]


def test_a_split_without_an_adapter_does_not_apply_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer()
    monkeypatch.setattr(benches, "_train", trainer)
    every = ["single", "ddp", "fsdp", "hsdp", "split"]
    Bench(every, ["mini"], [2, 4], None, 1, RunConfig(adapter="none")).run(tmp_path, REQUEST)
    assert state_of(tmp_path, "mini-split-4")["state"] == "not applicable"
    assert "strategy split trains adapters, and adapter is none" in state_of(tmp_path, "mini-split-2")["reason"]
    assert len(trainer.names) == 7
    assert [state_of(tmp_path, f"mini-hsdp-{size}")["parties"] for size in (2, 4)] == ["1 x 2", "2 x 2"]


def test_the_size_of_a_shard_group_is_hsdps_alone() -> None:
    bench = Bench(["ddp", "hsdp"], ["mini"], [4], None, 1, RunConfig(shard_size=4))
    assert [bench.settings(trial).shard_size for trial in bench.trials] == [None, 4]


def test_other_weights_in_the_same_place_are_another_request(tiny_model: Path, tiny_data: str) -> None:
    bench = Bench(["single"], [str(tiny_model)], [1], None, 0, RunConfig(data=tiny_data, evaluate="none"))
    before = look(bench)
    assert before["settings"]["dtype"] == "fp32"
    assert differences(before, look(bench)) == []
    change_a_bit(tiny_model / "model.safetensors")
    assert len(differences(before, look(bench))) == 1


def change_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def test_a_comparison_that_would_time_nothing_is_refused(tiny_model: Path, tiny_data: str) -> None:
    config = RunConfig(data=tiny_data, evaluate="none", max_examples=16, epochs=2)
    bench = Bench(["single"], [str(tiny_model)], [1], None, 2, config)
    with pytest.raises(ConfigError, match=r"warm_up_steps is 2, .* trains for 2 steps in all"):
        look(bench)


def test_another_request_in_the_same_folder_is_refused_with_what_differs(tmp_path: Path) -> None:
    make_bench().claim(tmp_path, REQUEST)
    make_bench().claim(tmp_path, json.loads(json.dumps(REQUEST)))
    with pytest.raises(RunDirectoryError, match=r"settings\.seed was 0, is 7"):
        make_bench().claim(tmp_path, REQUEST | {"settings": {"seed": 7, "epochs": 2}})


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all my work")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        make_bench().claim(tmp_path, REQUEST)


def test_all_trials_compute_with_one_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    bench = Bench(["single", "split"], ["mini"], [2, 4], None, 1, RunConfig())
    assert {bench.settings(trial).threads for trial in bench.trials} == {2}
    assert make_bench(threads=3).threads == 3


def test_a_splits_processes_are_clients_and_workers() -> None:
    trial = Trial(model="mini", strategy="split", num_processes=4)
    assert make_bench().parties(trial) == (2, 2)
    assert dataclasses.replace(make_bench(), workers=1).parties(trial) == (3, 1)
    assert make_bench().settings(trial).clients == 2


def test_workers_take_the_devices_after_the_clients() -> None:
    assert worker_devices(("auto",), 1, 1, num_gpus=2) == ["cuda:1"]
    assert worker_devices(("auto",), 2, 2, num_gpus=3) == ["cuda:2", "cuda:0"]
    assert worker_devices(("auto",), 1, 2, num_gpus=0) == ["cpu", "cpu"]
    assert worker_devices(("cuda:3", "cpu"), 1, 2, num_gpus=4) == ["cpu", "cuda:3"]


def test_what_other_programs_compute_is_told_apart_from_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own = iter([100.0, 130.0]), iter([10.0, 25.0])
    now = iter([0.0, 20.0])
    monkeypatch.setattr(benches, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(benches, "_own_seconds", lambda: next(own))
    assert benches.Clock(lambda: next(now)).read() == {"wall_seconds": 20.0, "others_cores": 0.75}


def test_unknown_and_repeated_strategies_are_refused() -> None:
    assert chosen_strategies("split, single") == ["split", "single"]
    assert chosen_strategies("")[0] == "single"
    with pytest.raises(ConfigError, match="no strategy is called 'dpd'"):
        chosen_strategies("single,dpd")
    with pytest.raises(ConfigError, match="twice"):
        chosen_strategies("single,single")


@pytest.mark.parametrize(
    "words",
    [
        ("--nproc", "2,x"),
        ("--nproc", "2,2"),
        ("--models", "a/mini,b/mini"),
        ("--workers", "0"),
        ("--data", "jsonl:/no"),
    ],
)
def test_a_wrong_request_ends_before_anything_is_made(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--out", str(tmp_path / "out"), *words]) == 2
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_single_hsdp_and_split_side_by_side(
    tiny_model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--model", str(tiny_model), "--data", tiny_data, "--epochs", "2", "--strategies", "single,hsdp,split")
    out = tmp_path / "out"
    settings = tmp_path / "compare.toml"
    settings.write_text("warm_up_steps = 1\nglobal_batch_size = 8\n")
    words = ("compare", *small, "--config", str(settings), "--out", str(out))
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["losses"]["agree"] is True
    assert document["warm_up_steps"] == 1
    single, hsdp, split = document["trials"]
    assert [trial["state"] for trial in document["trials"]] == ["done"] * 3
    assert (hsdp["parties"], split["parties"]) == ("1 x 2", "1 + 1")
    assert 0.0 < hsdp["totals"]["sent_a_step_megabytes"] == hsdp["totals"]["received_a_step_megabytes"]
    assert single["totals"]["sent_a_step_megabytes"] == 0.0 < split["totals"]["sent_a_step_megabytes"]
    assert 0.0 < single["totals"]["save_seconds"] < single["wall_seconds"]
    kept = (out / "trials/tiny-split-2.json").read_bytes()
    assert main([*words]) == 0
    assert (out / "trials/tiny-split-2.json").read_bytes() == kept
    assert main([*words, "--seed", "3"]) == 2
    assert "settings.seed was 0, is 3" in capsys.readouterr().err
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert "Strategies side by side" in (out / "report.html").read_text()
