"""`torso plan`: what it prints can be typed, and its JSON read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from torso.cli.main import main
from torso.cli.parsing import parse
from torso.cli.serve import ServeArguments, parse_layers
from torso.config import RunConfig

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
    words = ("--model", "gpt2-xl", "--devices", "2", "--device-memory", "8.5GB", "--lora-rank", "4")
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


def test_people_get_a_line_and_a_sentence_a_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "gpt2", "--adapter", "none", "--devices", "2", *GPUS]) == 0
    text = capsys.readouterr().out
    assert text.count("\nsplit ") == 2
    assert "a split trains adapters only" in text
    assert "Recommended: " in text


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
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(tiny_model), "--tokens", "16", "--devices", "2", "--calibration", str(tmp_path / "c.json")]
    first = plan(capsys, *words, "--calibrate", "--threads", "1")
    second = plan(capsys, *words)
    assert second["strategies"] == first["strategies"]
    assert first["strategies"]["ddp"]["seconds"]["communication"] > 0
    assert first["strategies"]["split"]["step_seconds"] > 0
