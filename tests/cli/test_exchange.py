"""Adapters and models to peft, transformers and the hub, and back."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.conftest import SHAPE, make_model
from tests.cli.jobs import digest, serving, torso
from torch import Tensor

from torso.adapters import peft_format
from torso.cli import push
from torso.cli.main import main
from torso.errors import ConfigError
from torso.parallel.ports import free_ports
from torso.training import checkpoint as checkpoints

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = ("--global-batch-size", "4", "--micro-batch-size", "2", "--threads", "1", "--evaluate", "none")
IDS = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Path:
    """With room for decoded outputs."""
    shape = dataclasses.replace(SHAPE, n_positions=128)
    return make_model(tmp_path_factory.mktemp("models") / "roomy", train_small, seed=0, shape=shape)


@pytest.fixture(scope="module")
def run(model: Path, tiny_data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ("--adapter", "dora", "--lora-rank", "3", "--learning-rate", "0.05")
    torso("train", "--model", model, "--data", tiny_data, *words, *SMALL, "--run-dir", folder)
    return folder


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its adapter and its merged model."""
    folder = tmp_path_factory.mktemp("exported")
    for kind in ("peft", "merged"):
        assert main(["export", str(run), "--out", str(folder / kind), "--format", kind]) == 0
    return folder


def tensors_of(run: Path, step: int) -> dict[str, Tensor]:
    """The adapter in a checkpoint, by name."""
    state = checkpoints.load(run / "checkpoints", step).state
    return {key.removeprefix("adapter:"): t for key, t in state.items() if key.startswith("adapter:")}


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(IDS).logits
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_head_body_and_tail_come_out_as_one_adapter_that_peft_loads(run: Path, exported: Path, model: Path) -> None:
    assert same(peft_format.read(exported / "peft").tensors, tensors_of(run, 12))
    base = transformers.GPT2LMHeadModel.from_pretrained(model)
    plain = logits_of(base)
    adapted = logits_of(peft.PeftModel.from_pretrained(base, exported / "peft"))
    merged = logits_of(transformers.GPT2LMHeadModel.from_pretrained(exported / "merged"))
    torch.testing.assert_close(merged, adapted, rtol=1e-5, atol=1e-5)
    assert float((adapted - plain).abs().max()) > 1e-2
    text = (exported / "peft" / "README.md").read_text()
    assert "rank | 3" in text
    assert "dora" in text


def test_a_merged_folder_has_a_tokenizer_and_is_a_model_to_train_on(
    run: Path, exported: Path, tiny_data: str, tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "merged")
    assert tokenizer.decode(tokenizer(" A is a pub.").input_ids) == " A is a pub."
    torso("train", "--model", exported / "merged", "--data", tiny_data, *SMALL, "--run-dir", tmp_path / "next")
    assert len(tensors_of(tmp_path / "next", 12)) > 0


def test_an_adapter_is_evaluated_without_its_run_as_with_it(
    run: Path, exported: Path, model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), "--subset", "test", "--json"]) == 0
    with_run = json.loads(capsys.readouterr().out)
    words = ["--adapter", str(exported / "peft"), "--model", str(model), "--data", tiny_data, "--threads", "1"]
    assert main(["evaluate", *words, "--subset", "test", "--out", str(tmp_path / "out"), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone | {"step": 12} == with_run
    outputs = (tmp_path / "out" / "outputs.jsonl").read_text()
    assert outputs == (run / "evaluation" / "test-step-00000012" / "outputs.jsonl").read_text()


def test_training_starts_from_what_peft_wrote_split_or_whole_and_goes_back_to_peft(
    model: Path, tiny_data: str, tmp_path: Path
) -> None:
    """An adapter whose layers differ, so that the server learns of ranks by layer too."""
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        fan_in_fan_out=True,
        r=4,
        lora_alpha=8,
        target_modules=r".*\.h\.\d\.(attn\.c_attn|mlp\.c_fc)",
        rank_pattern={"h.1.attn.c_attn": 2},
        use_rslora=True,
    )
    theirs = peft.get_peft_model(transformers.GPT2LMHeadModel.from_pretrained(model), config)
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    words = ("train", "--model", model, "--data", tiny_data, *SMALL, "--init-adapter", tmp_path / "theirs")
    torso(*words, "--run-dir", tmp_path / "whole")
    assert same(tensors_of(tmp_path / "whole", 0), peft_format.read(tmp_path / "theirs").tensors)
    assert not same(tensors_of(tmp_path / "whole", 12), tensors_of(tmp_path / "whole", 0))
    port = free_ports(1)
    with serving(model, port, tmp_path / "server.log", workers=1):
        torso(*words, "--strategy", "split", "--server", f"http://127.0.0.1:{port}", "--run-dir", tmp_path / "split")
    assert digest(tmp_path / "split") == digest(tmp_path / "whole")
    shutil.rmtree(tmp_path / "theirs")  # a resume does not need it
    torso("resume", tmp_path / "whole", "--epochs", "1")
    run, out = str(tmp_path / "whole"), str(tmp_path / "back")
    assert main(["export", run, "--out", out, "--checkpoint", "0"]) == 2  # no longer kept
    assert main(["export", run, "--out", out]) == 0
    base = transformers.GPT2LMHeadModel.from_pretrained(model)
    back = peft.PeftModel.from_pretrained(base, tmp_path / "back", is_trainable=True)
    stored = load_file(tmp_path / "back" / peft_format.TENSORS)
    in_peft = {name: p for name, p in back.named_parameters() if "lora_" in name}
    assert {name.replace(".default", "") for name in in_peft} == stored.keys()
    assert all(torch.equal(p, stored[name.replace(".default", "")]) for name, p in in_peft.items())


class Hub:
    """Stands in for the hub's client."""

    def __init__(self) -> None:
        self.made: list[tuple[str, bool]] = []
        self.files: list[str] = []

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> str:
        self.made.append((name, private))
        return f"https://hub/{name}"

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
        self.files += sorted(path.name for path in Path(folder_path).iterdir())


def test_a_run_and_a_folder_are_pushed_privately_unless_asked_otherwise(
    run: Path, exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert main(["push", str(run), "--to", "me/adapter"]) == 0
    assert hub.made == [("me/adapter", True)]
    assert hub.files == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert main(["push", str(exported / "merged"), "--to", "me/model", "--public"]) == 0
    assert hub.made[1] == ("me/model", False)
    printed = capsys.readouterr()
    assert printed.out.split() == ["https://hub/me/adapter", "https://hub/me/model"]
    assert "hf_secret" not in printed.out + printed.err


def test_without_a_token_or_a_proper_name_nothing_is_sent(
    exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match="no token"):
        push.upload(exported / "peft", "me/adapter", True)
    with pytest.raises(ConfigError, match="to is 'adapter'"):
        push.main([str(exported / "peft"), "--to", "adapter"])
