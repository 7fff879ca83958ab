"""`torso plan`: what it prints can be typed, and its JSON read."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from torso.cli.auto import choose, take_auto
from torso.cli.main import main
from torso.cli.parsing import parse
from torso.cli.planning import LOOPBACK, Lengths, calibrate, default_file, known_or_measured, load, machine, setting_of
from torso.cli.serve import ServeArguments, parse_layers
from torso.config import RunConfig
from torso.errors import ConfigError, WeightsError
from torso.model import hub
from torso.planner.calibration import Calibration, Entry
from torso.planner.costs import Costs, Line
from torso.planner.hardware import CPU, device_of
from torso.records import StepRecord, to_line

FREE = Line(latency_s=0.0, seconds_per_byte=0.0)
COSTS = Costs(block_forward=0.1, block_backward=0.1, loss=0.1, update=FREE, combine=FREE, all_reduce=FREE,
              all_gather=FREE, reduce_scatter=FREE, wire=FREE, wire_work=FREE)  # fmt: skip
GPUS = ("--device-kind", "a100-40gb", "--link", "nvlink3", "--tokens", "128")


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_json_has_figures_of_every_strategy_and_a_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--model", "gpt2", "--devices", "2", *GPUS)
    assert list(found["strategies"]) == ["single", "ddp", "fsdp", "hsdp", "split"]
    assert all(one["memory_bytes"] > 0 and one["step_seconds"] > 0 for one in found["strategies"].values())
    assert found["recommended"] in found["strategies"]
    assert found["commands"]


def test_the_command_for_a_split_is_two_that_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    # two devices that cannot hold the model each, and a link that is too slow to gather weights
    few = ("--device-kind", "a100-40gb", "--link", "1Gbit/s", "--tokens", "128", "--window", "1")
    words = ("--model", "gpt2-xl", "--devices", "2", "--device-memory", "8.5GB", "--lora-rank", "4", "--threads", "2")
    found = plan(capsys, *words, *few)
    assert found["recommended"] == "split"
    serve, train = (shlex.split(command) for command in found["commands"])
    assert serve[:2] == ["torso", "serve"]
    assert train[:2] == ["torso", "train"]
    options = parse(ServeArguments, "serve", serve[2:])
    config = parse(RunConfig, "train", train[2:]).checked()
    assert (options.model, config.model, config.lora_rank) == ("gpt2-xl", "gpt2-xl", 4)
    assert parse_layers(options.layers, 48) == (config.cuts(48).head_cut, config.cuts(48).tail_cut)
    assert (options.workers, config.clients) == (1, 1)
    assert options.threads == config.threads == 2  # part of the arithmetic, so of both


def test_the_command_for_one_device_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--adapter", "dora", "--targets", "c_attn", "c_fc", "--data", "jsonl:a b", "--micro-batch-size", "2")
    (command,) = plan(capsys, "--model", "gpt2", *words, *GPUS)["commands"]
    config = parse(RunConfig, "train", shlex.split(command)[2:]).checked()
    assert (config.strategy, config.adapter, config.micro_batch_size) == ("single", "dora", 2)
    assert config.data == "jsonl:a b"
    assert config.targets == ("c_attn", "c_fc")


def test_lengths_come_from_the_data_unless_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device-kind", "t4", "--link", "pcie3", "--data", "demo", "--model", "mini")
    setting = plan(capsys, *words)["setting"]
    assert 1 < setting["tokens"] < setting["longest"]
    assert 0.0 < setting["target_share"] < 1.0
    given = plan(capsys, *words, "--tokens", "100")["setting"]
    assert (given["tokens"], given["target_share"]) == (100, 1.0)


def test_a_model_on_the_hub_can_be_planned_for_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: str, patterns: tuple[str, ...]) -> Path:
        raise WeightsError(f"{model} cannot be fetched")

    monkeypatch.setattr(hub, "_from_hub", refuse)
    assert main(["plan", "--model", "gpt2-xl", "--devices", "2", *GPUS[:4]]) == 0
    shown = capsys.readouterr()
    assert "lengths are counted in mini's tokens, which are more: gpt2-xl cannot be fetched" in shown.err
    assert "torso train --model gpt2-xl" in shown.out


def test_a_split_in_fp16_is_not_applicable(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--model", "gpt2", "--tokens", "64", "--devices", "2", "--dtype", "fp16", *GPUS)["strategies"]
    assert not found["split"]["applicable"]
    assert found["ddp"]["applicable"]


def test_people_get_a_line_and_a_sentence_a_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "gpt2", "--adapter", "none", "--devices", "2", *GPUS]) == 0
    text = capsys.readouterr().out
    assert text.count("\nsplit ") == 2
    assert "a split trains adapters only" in text
    assert "Recommended: " in text


def comparison(path: Path, seconds: dict[str, float]) -> Path:
    """A comparison's folder with such medians of steps; every process had 500 MB."""
    (path / "trials").mkdir(parents=True)
    settings = {"data": "demo", "global_batch_size": 16, "micro_batch_size": 4, "dtype": "fp32", "adapter": "lora"}
    request = {"strategies": list(seconds), "models": {"mini": 3_550_000}, "world_sizes": [2], "warm_up_steps": 1,
               "on_gpu": False, "settings": settings, "machine": {"threads": "1"}}  # fmt: skip
    (path / "request.json").write_text(json.dumps(request))
    for name, step in seconds.items():
        stem = path / "trials" / f"mini-{name}-{1 if name == 'single' else 2}"
        stem.with_suffix(".json").write_text(json.dumps({"state": "done", "num_ranks": 1, "num_workers": 0}))
        stem.mkdir()
        records = [step_record(number, step * (5.0 if number == 1 else number)) for number in (1, 2, 3, 4)]
        (stem / "metrics.jsonl").write_text("".join(map(to_line, records)))
    return path


def step_record(number: int, seconds: float) -> StepRecord:
    return StepRecord(
        step=number, epoch=1, loss=1.0, target_tokens=1, real_tokens=1, padded_tokens=1, tokens_per_second=1.0,
        grad_norm=1.0, clip_factor=1.0, learning_rate=1.0, skipped=False, seconds=seconds, memory_bytes=500_000_000,
        server_memory_bytes=0, bytes_sent=0, bytes_received=0,
    )  # fmt: skip


def test_predictions_stand_beside_what_a_comparison_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(comparison(tmp_path / "cmp", {"single": 1.0, "split": 0.1}))
    assert main(["plan", "--against", path, "--device-kind", "t4", "--link", "pcie3", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    single = found["strategies"]["single"]
    # the median of 2, 3 and 4; the first step warms up
    assert single["measured_step_seconds"] == 3.0
    assert single["time_error"] == pytest.approx(single["step_seconds"] / 3.0 - 1.0)
    assert single["memory_error"] == pytest.approx(single["memory_bytes"] / 500_000_000 - 1.0)
    assert found["fastest"] == "split"
    assert found["recommended"] in ("single", "split")
    assert main(["plan", "--against", path, "--device-kind", "t4", "--link", "pcie3", "--device-memory", "400MB"]) == 0
    assert "fastest that fits nothing" in capsys.readouterr().out


def test_a_folder_that_is_no_comparison_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--against", str(tmp_path)]) == 2
    assert "holds no comparison" in capsys.readouterr().err


def known(tokens: int = 16) -> Calibration:
    """A machine on which two processes take half as long as one; nothing was measured."""
    setting = setting_of(RunConfig(threads=1), Lengths(mean=tokens, longest=tokens, target_share=1.0), 2, CPU, LOOPBACK)
    entries = [Entry.of(setting, 1, 1, COSTS), Entry.of(setting, os.cpu_count() or 1, 1, COSTS)]
    return Calibration(machine=machine(), import_bytes=0.0, entries=tuple(entries))


def test_auto_is_resolved_before_the_run_directory_is_made(
    tiny_model: Path,
    tiny_data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    default_file().parent.mkdir()
    default_file().write_text(known().to_json())
    words = ["train", "--model", str(tiny_model), "--data", tiny_data, "--max-examples", "16", "--evaluate", "none"]
    monkeypatch.setattr("torso.cli.auto._known", lambda: ("single", "split"))
    assert main([*words, "--strategy", "auto", "--threads", "1", "--run-dir", str(tmp_path / "run")]) == 0
    assert RunConfig.from_toml(tmp_path / "run" / "config.toml").strategy == "single"
    assert "strategy: single. " in capsys.readouterr().err


def test_a_split_is_chosen_only_where_a_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    default_file().parent.mkdir()
    monkeypatch.setattr("torso.cli.auto._known", lambda: ("single", "split"))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    default_file().write_text(known().to_json())
    config = RunConfig(max_examples=16, threads=1)
    assert choose(config, has_server=False).strategy == "single"
    assert choose(config, has_server=True).strategy == "split"


@pytest.mark.parametrize(("device", "dtype"), [("t4", "fp32"), ("a100-40gb", "bf16")])
def test_dtype_auto_is_what_a_gpu_does_natively(device: str, dtype: str) -> None:
    lengths = Lengths(mean=16, longest=16, target_share=1.0)
    assert setting_of(RunConfig(dtype="auto"), lengths, 1, device_of(device), LOOPBACK).dtype == dtype


def test_auto_is_taken_out_of_the_words_and_other_strategies_stay() -> None:
    words = ["--strategy", "auto", "--epochs", "2"]
    assert take_auto(words)
    assert words == ["--epochs", "2"]
    words = ["--strategy=split"]
    assert not take_auto(words)
    assert words == ["--strategy", "split"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--device-kind", "tpu", "--tokens", "8"), "no device is called 'tpu'"),
        (("--device-kind", "t4", "--tokens", "8"), "link loopback"),
        (("--device-kind", "t4", "--link", "fast", "--tokens", "8"), "link is 'fast'"),
        (("--device-memory", "16", "--tokens", "8"), "device_memory is '16'"),
        (("--tokens", "2000"), "tokens is 2000"),
        (("--tokens", "8", "--devices", "0"), "devices is 0"),
        (("--tokens", "8", "--micro-batch-size", "5"), "no multiple"),
        (("--tokens", "8", "--calibration", "nowhere.json"), "--calibrate"),
        (("--device-kind", "t4", "--calibrate", "--tokens", "8"), "Only CPUs"),
    ],
)
def test_a_wrong_request_ends_with_one_line_and_code_2(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", "gpt2", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error


@pytest.mark.slow
def test_a_calibration_of_two_processes_is_kept_and_used_again(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torso.cli.probe.probe", lambda *of: {"single": 1e6})
    words = ["--model", str(tiny_model), "--tokens", "16", "--devices", "2", "--calibration", str(tmp_path / "c.json")]
    first = plan(capsys, *words, "--calibrate", "--threads", "1")
    second = plan(capsys, *words, "--threads", "1")
    assert second["strategies"] == first["strategies"]
    assert first["strategies"]["ddp"]["seconds"]["communication"] > 0
    assert first["strategies"]["split"]["step_seconds"] > 0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations without measuring."""
    monkeypatch.setattr("torso.cli.probe.probe", lambda *of: {})
    monkeypatch.setattr("torso.cli.planning._import_bytes", lambda: 3e8)
    monkeypatch.setattr("torso.cli.planning._measure", lambda *of: dataclasses.asdict(COSTS))


CHANGES = [{"version": 1}, {"machine": {**machine(), "torch": "2.0.0"}}]


@pytest.mark.parametrize("change", CHANGES, ids=["an older version", "another torch"])
@pytest.mark.usefixtures("quick")
def test_a_kept_calibration_that_says_nothing_here_any_more_is_made_anew(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    setting = setting_of(RunConfig(), Lengths(mean=8, longest=8, target_share=1.0), 2, CPU, LOOPBACK)
    made = calibrate(setting, default_file())
    default_file().write_text(json.dumps(json.loads(made.to_json()) | change), encoding="utf-8")
    assert known_or_measured(setting) == made
    assert load(default_file()) == made


@pytest.mark.parametrize(("change", "said"), [(CHANGES[1], "another machine"), (None, "is not JSON")])
@pytest.mark.usefixtures("quick")
def test_a_file_that_was_named_is_not_overwritten_where_it_is_somebody_elses(
    change: dict[str, Any] | None, said: str, tmp_path: Path
) -> None:
    setting, path = (
        setting_of(RunConfig(), Lengths(mean=8, longest=8, target_share=1.0), 2, CPU, LOOPBACK),
        tmp_path / "c",
    )
    made = calibrate(setting, path)
    path.write_text("notes" if change is None else json.dumps(json.loads(made.to_json()) | change), encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        calibrate(setting, path)
    assert path.read_text(encoding="utf-8") == before
