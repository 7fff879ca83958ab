"""Each wrong request ends in one clear line and exit code 2, before anything is started or written."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.conftest import Refuse, make_model
from tests.split.harness import Servers, serving

from torso.training.run_directory import RunDirectory


def test_a_missing_data_file_is_named(train: Refuse) -> None:
    assert "/nowhere/train.csv" in train(data="e2e:/nowhere/train.csv")


def test_an_unknown_data_set_is_told_what_there_is(train: Refuse) -> None:
    assert "Expected demo, e2e" in train(data="e3e")


def test_a_csv_without_its_columns_is_told_which(train: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "trainset.csv"
    path.write_text("meaning,text\na,b\n", encoding="utf-8")
    line = train(data=f"e2e:{path}")
    assert "mr" in line
    assert "ref" in line
    assert str(path) in line


def test_a_broken_line_of_jsonl_is_named_by_number(train: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": \n', encoding="utf-8")
    assert "line 2" in train(data=f"jsonl:{path}")


def test_an_empty_data_set_is_refused(train: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n", encoding="utf-8")
    assert str(path) in train(data=f"jsonl:{path}")


def test_a_missing_model_is_named(train: Refuse) -> None:
    assert "'/nowhere'" in train(model=Path("/nowhere"))


def test_a_model_that_is_not_gpt2_is_refused(train: Refuse, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps(config | {"model_type": "llama"}), encoding="utf-8")
    assert "llama" in train(model=other)


def test_weights_cut_short_are_refused(train: Refuse, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "model.safetensors" in train(model=other)


def test_weights_that_lack_a_tensor_or_have_a_misshapen_one_are_refused(
    train: Refuse, refuse: Refuse, tiny_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    stored = load_file(other / "model.safetensors")
    save_file(stored | {"transformer.h.1.ln_1.bias": torch.ones(3)}, other / "model.safetensors")
    assert "h.1.ln_1.bias" in refuse("serve", "--model", other)
    assert "has shape (3,)" in train(model=other)
    del stored["transformer.h.0.ln_1.bias"]
    save_file(stored, other / "model.safetensors")
    assert "h.0.ln_1.bias" in train(model=other)


def test_every_ranks_device_is_looked_at(train: Refuse) -> None:
    split = ("--strategy", "split", "--clients", "2", "--server", "http://127.0.0.1:9")
    assert "device is 'gpu'" in train(*split, "--device", "cpu", "gpu")
    assert "device is 'meta'" in train("--device", "meta")


def test_a_set_that_cannot_be_evaluated_is_refused_before_it_is_trained_on(
    train: Refuse, tiny_data: str, tmp_path: Path
) -> None:
    folder = tmp_path / "only"
    folder.mkdir()
    shutil.copy(Path(tiny_data.removeprefix("jsonl:")) / "train.jsonl", folder)
    line = train(data=f"jsonl:{folder}")
    assert "has no dev examples" in line
    assert "--evaluate none" in line
    # 64 new tokens leave no room for a prompt in the tiny model's 64 positions
    assert "--evaluate none" in train("--evaluate", "test")


def test_folders_that_cannot_be_made_are_named(refuse: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert str(path) in refuse("demo", "--out", path)
    assert str(path) in refuse("verify", "--out", path)


def test_a_settings_file_can_name_the_run(refuse: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f'run_dir = "{tmp_path}/nowhere"', encoding="utf-8")
    assert "nowhere holds no run" in refuse("evaluate", "--config", path)


def test_a_decoding_of_no_tokens_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    assert "max_new_tokens is 0" in refuse("generate", tmp_path, "--prompt", "a", "--max-new-tokens", "0")


def test_no_threads_at_all_are_refused(refuse: Refuse, tiny_model: Path) -> None:
    assert "threads is 0" in refuse("serve", "--model", tiny_model, "--threads", "0", "--port", "18700")


def test_a_launch_under_torchrun_is_refused(refuse: Refuse, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert "torchrun" in refuse("serve", "--model", tiny_model, "--port", "18700")


def test_cut_layers_out_of_order_are_refused(train: Refuse) -> None:
    assert "3:1" in train("--head-cut", "3", "--tail-cut", "1")


def test_a_split_that_would_send_embeddings_is_refused(train: Refuse) -> None:
    assert "embeddings" in train("--strategy", "split", "--head-cut", "0")


def test_a_split_without_adapter_is_refused(train: Refuse) -> None:
    assert "adapter is none" in train("--strategy", "split", "--adapter", "none")


def test_settings_that_disagree_are_refused(train: Refuse) -> None:
    assert "micro_batch_size" in train("--global-batch-size", "8", "--micro-batch-size", "3")
    assert "horizon" in train("--schedule", "linear")
    assert "clients" in train("--clients", "2")
    assert "targets" in train("--targets", "c_atn") or "c_atn" in train("--targets", "c_atn")


def test_a_settings_file_is_checked(train: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    assert str(path) in train("--config", path)
    path.write_text("lora_rnak = 8", encoding="utf-8")
    assert "lora_rnak" in train("--config", path)
    path.write_text("lora_rank = ", encoding="utf-8")
    assert "not TOML" in train("--config", path)
    path.write_text('lora_rank = "eight"', encoding="utf-8")
    assert "lora_rank" in train("--config", path)
    path.write_text('best_by = "bleu"', encoding="utf-8")
    assert "Choose among perplexity, official_bleu, " in train("--config", path)


@pytest.mark.parametrize("name", ["learning_rate", "eps", "weight_decay"])
def test_an_infinite_setting_is_refused(train: Refuse, name: str) -> None:
    assert train(f"--{name.replace('_', '-')}", "inf").startswith(f"{name} is inf")


@pytest.mark.parametrize("name", ["read_timeout_s", "patience_s"])
def test_a_time_that_is_no_number_is_refused(train: Refuse, name: str) -> None:
    assert train("--strategy", "split", f"--{name.replace('_', '-')}", "nan").startswith(f"{name} is nan")


def test_settings_of_another_way_of_decoding_are_refused(refuse: Refuse, tmp_path: Path) -> None:
    line = refuse("evaluate", tmp_path, "--temperature", "0.5")
    assert "--temperature means nothing with --decoding greedy" in line
    line = refuse("generate", tmp_path, "--mr", "name[A]", "--decoding", "sample", "--beams", "4")
    assert "--beams means nothing with --decoding sample" in line


def test_a_server_that_is_not_there_is_named(train: Refuse) -> None:
    line = train("--strategy", "split", "--server", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9" in line
    assert "torso serve" in line


def test_a_server_address_that_is_no_url_is_refused(train: Refuse) -> None:
    assert "localhost:8700" in train("--strategy", "split", "--server", "localhost:8700")


def test_a_proxy_in_the_environment_is_not_asked_for_localhost(
    train: Refuse, server: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    # the server was reached: it is refused for what it holds
    assert "layers 1:3" in train("--strategy", "split", "--server", server.url, "--head-cut", "2")


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Servers]:
    """One worker with blocks 1 and 2 of the tiny model."""
    with serving(tiny_model, 1) as servers:
        yield servers


def test_a_server_with_another_layer_range_is_refused(train: Refuse, server: Servers) -> None:
    line = train("--strategy", "split", "--server", server.url, "--tail-cut", "2")
    assert "1:3" in line
    assert "1:2" in line


def test_a_server_with_other_weights_is_refused(
    train: Refuse, server: Servers, tmp_path: Path, train_small: Callable[..., Path]
) -> None:
    other = make_model(tmp_path / "other", train_small, seed=1)
    assert "weights" in train("--strategy", "split", "--server", server.url, model=other)


def test_a_run_directory_that_holds_a_run_is_left_alone(
    refuse: Refuse, tiny_model: Path, tiny_data: str, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run", "", 1)
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    line = refuse("train", "--model", tiny_model, "--data", tiny_data, "--run-dir", run.path)
    assert "already holds a run" in line
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before


def test_a_resume_with_settings_that_may_not_change_is_refused(
    refuse: Refuse, tiny_model: Path, tiny_data: str, tmp_path: Path
) -> None:
    settings = f'model = "{tiny_model}"\ndata = "{tiny_data}"\n'
    run = RunDirectory.create(tmp_path / "run", settings, 1)
    assert "lora_rank (8 to 4)" in refuse("resume", run.path, "--lora-rank", "4")
    assert "seed (0 to 1)" in refuse("resume", run.path, "--seed", "1", "--epochs", "1")
    assert run.state.epochs == 1


def test_a_resume_past_a_stated_horizon_is_refused(
    refuse: Refuse, tiny_model: Path, tiny_data: str, tmp_path: Path
) -> None:
    settings = f'model = "{tiny_model}"\ndata = "{tiny_data}"\nschedule = "cosine"\nhorizon_epochs = 1.0\n'
    run = RunDirectory.create(tmp_path / "run", settings, 1)
    assert "horizon" in refuse("resume", run.path, "--epochs", "1")
    assert run.state.epochs == 1


@pytest.mark.parametrize("command", ["resume", "evaluate", "digest", "report"])
def test_a_folder_without_a_run_is_refused(command: str, refuse: Refuse, tmp_path: Path) -> None:
    assert str(tmp_path) in refuse(command, tmp_path)


def test_a_port_in_use_is_named(refuse: Refuse, tiny_model: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert str(port) in refuse("serve", "--model", tiny_model, "--port", str(port))


@pytest.mark.parametrize("layers", ["3:1", "0:2", "1:9", "one", "2:2"])
def test_layers_that_a_server_cannot_lend_are_refused(layers: str, refuse: Refuse, tiny_model: Path) -> None:
    assert "layer" in refuse("serve", "--model", tiny_model, "--layers", layers)
