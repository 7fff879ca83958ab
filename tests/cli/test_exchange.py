"""Adapters and models to peft and transformers, and back."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file
from tests.cli.conftest import SHAPE, make_model
from tests.split.harness import Servers
from torch import Tensor

from torso.adapters import peft_format
from torso.cli import push
from torso.cli.adapters import start_from
from torso.cli.main import main
from torso.config import RunConfig
from torso.data.tokenizer import Tokenizer
from torso.model.names import expected_shapes
from torso.model.weights import FolderWeights
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import RunDirectory

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = ("--global-batch-size", "4", "--micro-batch-size", "2", "--threads", "1", "--evaluate", "none")
IDS = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(1))


def torso(*words: str | Path) -> None:
    """In this process, to its good end."""
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Path:
    """With room for decoded outputs."""
    shape = dataclasses.replace(SHAPE, n_positions=128)
    return make_model(tmp_path_factory.mktemp("models") / "roomy", train_small, seed=0, shape=shape)


@pytest.fixture(scope="module")
def run(model: Path, tiny_data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, evaluated on test."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ("--adapter", "dora", "--lora-rank", "3", "--learning-rate", "0.05")
    torso("train", "--model", model, "--data", tiny_data, *words, *SMALL, "--run-dir", folder)
    torso("evaluate", folder, "--subset", "test")
    return folder


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its adapter and its merged model."""
    folder = tmp_path_factory.mktemp("exported")
    for kind in ("peft", "merged"):
        torso("export", run, "--out", folder / kind, "--format", kind)
    return folder


def tensors_of(run: Path, step: int) -> dict[str, Tensor]:
    """What was trained, in a checkpoint, by name."""
    return checkpoints.load(run / "checkpoints", step).trained()


def base_of(model: Path) -> Any:
    return transformers.GPT2LMHeadModel.from_pretrained(model)


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(IDS).logits
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_head_body_and_tail_come_out_as_one_adapter_that_peft_loads(run: Path, exported: Path, model: Path) -> None:
    assert same(peft_format.read(exported / "peft").tensors, tensors_of(run, 12))
    base = base_of(model)
    plain = logits_of(base)
    adapted = logits_of(peft.PeftModel.from_pretrained(base, exported / "peft"))
    merged = logits_of(base_of(exported / "merged"))
    torch.testing.assert_close(merged, adapted, rtol=1e-5, atol=1e-5)
    assert float((adapted - plain).abs().max()) > 1e-2
    auto = peft.AutoPeftModelForCausalLM.from_pretrained(exported / "peft")  # finds the base by its name
    assert torch.equal(logits_of(auto), adapted)


def test_the_card_says_what_it_is_made_of_and_how_well_it_does(exported: Path, tiny_data: str, model: Path) -> None:
    for kind in ("peft", "merged"):
        text = (exported / kind / "README.md").read_text()
        for row in ("adapter | dora", "rank | 3", "learning rate | 0.05", "Scores on test", "perplexity | ", "step 12"):
            assert row in text
        assert FolderWeights(model).fingerprint(None) in text
        assert str(model.parent) not in text
        assert tiny_data not in text


def test_an_adapter_keeps_every_bit_through_peft(exported: Path, model: Path, tmp_path: Path) -> None:
    peft.PeftModel.from_pretrained(base_of(model), exported / "peft").save_pretrained(tmp_path / "back")
    ours, back = peft_format.read(exported / "peft"), peft_format.read(tmp_path / "back")
    assert same(ours.tensors, back.tensors)
    assert ours.config == back.config
    torso("export", "--adapter", tmp_path / "back", "--model", model, "--out", tmp_path / "again")
    first, again = (load_file(folder / peft_format.TENSORS) for folder in (exported / "peft", tmp_path / "again"))
    assert same(first, again)


def test_a_merged_folder_has_a_tokenizer_and_is_a_model_to_train_on(
    exported: Path, model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "merged")
    text = " A is a pub, isn't it? £20-25, café."
    assert tokenizer(text).input_ids == Tokenizer(exported / "merged").encode(text)
    assert tokenizer.eos_token_id == Tokenizer(exported / "merged").eos_id
    words = ("--model", exported / "merged", "--data", tiny_data, "--max-examples", "4", "--lora-rank", "2")
    torso("train", *words, *SMALL, "--run-dir", tmp_path / "next")
    assert len(tensors_of(tmp_path / "next", 1)) > 0
    # embeddings are the same as the first base's, blocks are not: the adapter would be applied twice
    merging = ["export", "--adapter", str(exported / "peft"), "--model", str(exported / "merged"), "--format", "merged"]
    assert main([*merging, "--out", str(tmp_path / "twice")]) == 2
    assert "other weights than those" in capsys.readouterr().err


def test_a_base_without_a_tokenizer_gives_a_model_without_one(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixtures, out = shared_data / "peft-fixtures", tmp_path / "out"
    torso(
        *("export", "--adapter", fixtures / "lora", "--model", fixtures / "base", "--format", "merged"),
        *("--out", out, "--json"),
    )
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "format": "merged", "step": None}
    assert {path.name for path in out.iterdir()} == {"README.md", "config.json", "model.safetensors"}


def test_the_end_token_of_another_tokenizer_is_kept(
    tmp_path: Path, train_small: Callable[..., Path], exported: Path, model: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    train_small(other, end="<end>")
    (other / "tokenizer_config.json").write_text('{"eos_token": "<end>", "tokenizer_class": "GPT2TokenizerFast"}')
    torso("export", "--adapter", exported / "peft", "--model", other, "--format", "merged", "--out", tmp_path / "out")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<end>"
    assert same(*(load_file(folder / "model.safetensors") for folder in (exported / "merged", tmp_path / "out")))


def test_an_adapter_is_used_without_its_run_as_with_it(
    run: Path, exported: Path, model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--adapter", str(exported / "peft"), "--model", str(model), "--threads", "1"]
    torso("evaluate", *words, "--data", tiny_data, "--subset", "test", "--out", tmp_path / "out")
    folder = run / "evaluation" / "test-step-00000012"
    assert (tmp_path / "out" / "outputs.jsonl").read_text() == (folder / "outputs.jsonl").read_text()
    alone, with_run = (json.loads((path / "scores.json").read_text()) for path in (tmp_path / "out", folder))
    assert alone | {"step": 12} == with_run
    capsys.readouterr()
    torso("generate", *words, "--prompt", "test number 1")
    torso("generate", run, "--prompt", "test number 1")
    assert len(set(capsys.readouterr().out.splitlines())) == 1


@pytest.fixture(scope="module")
def theirs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By peft: an adapter whose layers differ, so that a server learns of ranks by layer too."""
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        fan_in_fan_out=True,
        r=4,
        lora_alpha=8,
        target_modules=r".*\.h\.\d\.(attn\.c_attn|mlp\.c_fc)",
        rank_pattern={"h.1.attn.c_attn": 2},
        use_rslora=True,
    )
    adapted = peft.get_peft_model(base_of(model), config)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    folder = tmp_path_factory.mktemp("theirs") / "adapter"
    adapted.save_pretrained(folder)
    return folder


def test_training_starts_from_what_peft_wrote_split_or_whole_and_goes_back_to_peft(
    theirs: Path, model: Path, tiny_data: str, tmp_path: Path
) -> None:
    shutil.copytree(theirs, tmp_path / "theirs")
    words = ("train", "--model", model, "--data", tiny_data, *SMALL, "--init-adapter", tmp_path / "theirs")
    torso(*words, "--run-dir", tmp_path / "whole")
    found = peft_format.read(theirs)
    assert same(tensors_of(tmp_path / "whole", 0), found.tensors)
    assert not same(tensors_of(tmp_path / "whole", 12), found.tensors)
    recorded = RunConfig.from_toml(tmp_path / "whole" / "config.toml")
    assert recorded.init_adapter_sha256 == found.fingerprint()
    assert recorded.adapter_config == found.config
    with Servers(model, 1, head_cut=1, tail_cut=3) as server:
        torso(*words, "--strategy", "split", "--server", server.url, "--run-dir", tmp_path / "split")
    split, whole = (checkpoints.load(tmp_path / name / "checkpoints", 12) for name in ("split", "whole"))
    assert split.digest() == whole.digest()
    shutil.rmtree(tmp_path / "theirs")  # a resume does not need it
    torso("resume", tmp_path / "whole", "--epochs", "1")
    torso("export", tmp_path / "whole", "--out", tmp_path / "back")
    assert found.fingerprint() in (tmp_path / "back" / "README.md").read_text()
    back = peft.PeftModel.from_pretrained(base_of(model), tmp_path / "back")
    in_peft = {name.replace(".default", ""): p for name, p in back.named_parameters() if "lora_" in name}
    assert same(in_peft, load_file(tmp_path / "back" / peft_format.TENSORS))


def test_a_run_killed_before_its_start_was_saved_does_not_start_afresh(
    theirs: Path, model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = peft_format.read(theirs)
    config = RunConfig(model=str(model), data=tiny_data, threads=1, init_adapter=str(theirs))
    config = dataclasses.replace(config, modules=found.config.modules, rslora=True, evaluate="none")
    RunDirectory.create(tmp_path / "run", config.to_toml(), 1)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "was saved in it. Train it anew" in capsys.readouterr().err


def test_all_weights_of_a_run_come_out_as_a_model(
    model: Path, tiny_data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FolderWeights(model)
    weights = {name: source.tensor(name) * 1.5 for name in expected_shapes(source.config)}
    state = {f"adapter:{name}": t for name, t in weights.items()} | {"optimizer_step": torch.tensor([3])}
    state |= {f"exp_avg:{name}": torch.zeros_like(t) for name, t in weights.items()}
    config = RunConfig(model=str(model), data=tiny_data)
    run = RunDirectory.create(tmp_path / "run", config.to_toml(), 1)
    checkpoints.save(run.checkpoints, 3, state, {})
    torso("export", run.path, "--format", "hf", "--out", tmp_path / "hf")
    loaded = base_of(tmp_path / "hf").state_dict()
    assert torch.equal(loaded["transformer.h.2.mlp.c_fc.weight"], weights["h.2.mlp.c_fc.weight"].t())
    assert torch.equal(loaded["lm_head.weight"], weights["wte.weight"])
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").eos_token_id == 0
    assert "all weights trained" in (tmp_path / "hf" / "README.md").read_text()
    words = ("--model", tmp_path / "hf", "--data", tiny_data, "--max-examples", "4", "--lora-rank", "2")
    torso("train", *words, *SMALL, "--run-dir", tmp_path / "next")
    capsys.readouterr()
    assert main(["export", str(run.path), "--out", str(tmp_path / "x")]) == 2
    assert "the run trained all weights. Give --format hf" in capsys.readouterr().err
    state.pop("adapter:ln_f.bias")
    checkpoints.save(run.checkpoints, 4, state, {})
    assert main(["export", str(run.path), "--format", "hf", "--out", str(tmp_path / "x")]) == 2
    assert "not a whole GPT-2: ln_f.bias" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "next", "run"]


def test_random_weights_have_no_name_that_others_know(
    theirs: Path, model: Path, tiny_data: str, tmp_path: Path
) -> None:
    found = peft_format.read(theirs)
    config = RunConfig(model=str(model), init="random", data=tiny_data, modules=found.config.modules, rslora=True)
    run = RunDirectory.create(tmp_path / "run", config.to_toml(), 1)
    checkpoints.save(run.checkpoints, 0, start_from(found).state, {})
    torso("export", run.path, "--out", tmp_path / "out")
    assert peft_format.named_base(tmp_path / "out") is None
    assert same(peft_format.read(tmp_path / "out").tensors, found.tensors)


def test_a_run_is_pushed_as_it_would_be_exported(run: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[dict[str, bytes], str, bool]] = []

    def upload(files: dict[str, Path | bytes], to: str, private: bool) -> str:
        data = {name: file if isinstance(file, bytes) else file.read_bytes() for name, file in files.items()}
        sent.append((data, to, private))
        return "https://hub"

    monkeypatch.setattr(push, "upload", upload)
    torso("push", run, "--to", "me/adapter")
    torso("push", run, "--to", "me/model", "--format", "merged", "--public")
    assert [(to, private) for _, to, private in sent] == [("me/adapter", True), ("me/model", False)]
    for kind, (files, _, _) in zip(("peft", "merged"), sent, strict=True):
        expected = {path.name: path.read_bytes() for path in (exported / kind).iterdir()}
        assert files.keys() == expected.keys()
        tensors = next(name for name in files if name.endswith(".safetensors"))
        assert same(load(files[tensors]), load(expected[tensors]))
        assert files["README.md"] == expected["README.md"]
