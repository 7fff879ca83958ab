"""What `train`, `evaluate`, `generate` and `export` refuse of adapters: one line and exit code 2."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.cli.conftest import SHAPE, Refuse, make_model

from torso.adapters import peft_format
from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.cli.adapters import base_of
from torso.model.config import Cuts
from torso.model.stages import GPT2
from torso.model.weights import FolderWeights, build


@pytest.fixture
def an_adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """Of the tiny model, LoRA of rank 2 on one layer."""
    source = FolderWeights(tiny_model)
    model = build(lambda config, cuts: GPT2(config), source, Cuts.default(source.config.n_layer))
    config = AdapterConfig(lora_rank=2, targets=("attn.c_attn",))
    tensors = {name: p.detach() for name, p in inject(model, config, seed=0).items()}
    folder = tmp_path / "adapter"
    peft_format.write(folder, peft_format.PeftAdapter(config, tensors, base_of(source)), "mini")
    return folder


def test_an_adapter_that_does_not_fit_the_request_is_refused_by_what_differs(
    train: Refuse,
    refuse: Refuse,
    an_adapter: Path,
    tiny_model: Path,
    train_small: Callable[..., Path],
    tmp_path: Path,
) -> None:
    start = ("--init-adapter", an_adapter)
    assert "lora_rank is 4, the adapter" in train(*start, "--lora-rank", "4")
    assert "lora_rank is 8, the adapter" in train(*start, "--lora-rank", "8")  # the usual default, but it was given
    assert "adapter is dora" in train(*start, "--adapter", "dora")
    assert "targets is ('mlp.c_fc',)" in train(*start, "--targets", "c_fc")
    assert "expected 1234" in train(*start, "--init-adapter-sha256", "1234")
    compare = ("compare", "--strategies", "single", "--model", tiny_model, "--out", tmp_path / "compared")
    assert "lora_rank is 8, the adapter" in refuse(*compare, *start, "--lora-rank", "8")
    agreeing = ("--lora-rank", "2", "--targets", "c_attn", "--adapter-dropout", "0.5")
    assert "/nowhere" in train(*start, *agreeing, data="e2e:/nowhere")
    assert "has no adapter_config.json" in train("--init-adapter", tmp_path)
    assert "trained on mini, not on gpt2" in train(*start, model=Path("gpt2"))
    other = make_model(tmp_path / "other", train_small, seed=1)
    assert "other weights than those" in train(*start, model=other)
    assert "other weights than those" in refuse("evaluate", "--adapter", an_adapter, "--model", other)
    assert "other weights than those" in refuse("generate", "--adapter", an_adapter, "--model", other, "--prompt", "a")


def test_an_adapter_of_another_base_is_refused_though_its_shapes_fit(
    refuse: Refuse, an_adapter: Path, tiny_model: Path, tmp_path: Path, train_small: Callable[..., Path]
) -> None:
    path = an_adapter / peft_format.CONFIG
    settings = json.loads(path.read_text())
    words = ("evaluate", "--adapter", an_adapter)
    path.write_text(json.dumps(settings | {"base_model_name_or_path": "microsoft/DialoGPT-small"}))
    assert "trained on microsoft/DialoGPT-small, not on mini" in refuse(*words)
    path.write_text(json.dumps(settings | {"base_model_name_or_path": None}))
    shorter = make_model(tmp_path / "m", train_small, seed=0, shape=dataclasses.replace(SHAPE, n_layer=3))
    tensors = load_file(an_adapter / peft_format.TENSORS)
    save_file(tensors, an_adapter / peft_format.TENSORS)  # without what Torso noted
    assert "tensors of h.3.attn.c_attn" in refuse(*words, "--model", shorter)
    wider = make_model(tmp_path / "w", train_small, seed=0, shape=dataclasses.replace(SHAPE, n_embd=32))
    assert "the layer of" in refuse(*words, "--model", wider)


def test_a_layer_that_the_model_does_not_have_is_refused(train: Refuse) -> None:
    assert "modules has 'h.9.attn.c_attn=2:4.0', the model has 4 blocks" in train("--modules", "h.9.attn.c_attn=2:4.0")


def test_an_export_says_what_it_lacks_and_never_overwrites(
    refuse: Refuse, an_adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    adapter = ("export", "--adapter", an_adapter, "--model", tiny_model)
    assert "neither or both" in refuse("export", "--out", "x")
    assert "no --out" in refuse("export", "--adapter", an_adapter)
    assert "not empty" in refuse(*adapter, "--out", an_adapter)
    assert "is no folder" in refuse(*adapter, "--out", an_adapter / peft_format.CONFIG / "x")
    assert "--format hf is for runs that trained all weights" in refuse(*adapter, "--out", "x", "--format", "hf")
    assert "--checkpoint means nothing with --adapter" in refuse(*adapter, "--out", "x", "--checkpoint", "best")
    assert "--model means nothing with a run" in refuse("export", an_adapter, "--model", "gpt2", "--out", "x")
    assert "holds no run" in refuse("export", an_adapter, "--out", an_adapter / "x")
    assert not (an_adapter / "x").exists()


def test_of_a_run_and_an_adapter_there_is_one_and_idle_flags_are_refused(refuse: Refuse, an_adapter: Path) -> None:
    for words in (("evaluate",), ("generate", "--prompt", "a")):
        assert "neither or both" in refuse(*words)
        assert "neither or both" in refuse(*words, an_adapter, "--adapter", an_adapter)
        assert "--whole means nothing with --adapter" in refuse(*words, "--adapter", an_adapter, "--whole")
        assert "--threads means nothing with a run" in refuse(*words, an_adapter, "--threads", "1")
