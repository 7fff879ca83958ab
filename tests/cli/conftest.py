from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torso.cli.main import main
from torso.model.config import GPT2Config
from torso.model.stages import GPT2
from torso.model.weights import save_folder

Refuse = Callable[..., str]
SHAPE = GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=4, n_head=2, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Path:
    """A folder with a random GPT-2 of four narrow blocks and a tokenizer that fits."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny", train_small, seed=0)


def make_model(folder: Path, train_small: Callable[..., Path], seed: int, shape: GPT2Config = SHAPE) -> Path:
    """The same with other random weights, or of another shape."""
    torch.manual_seed(seed)
    train_small(folder)
    save_folder(folder, shape, dict(GPT2(shape).state_dict()))
    return folder


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of a few dozen short lines."""
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("train", 48), ("dev", 4), ("test", 4)):
        lines = [
            json.dumps({"prompt": f"{name} number {i}", "completion": f"It is {'very ' * (i % 5)}{i}."})
            for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return f"jsonl:{folder}"


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Runs a command that must be refused; returns its one line."""

    def run(*words: str | Path) -> str:
        code = main([str(word) for word in words])
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("data: ")]
        assert (code, len(lines)) == (2, 1), lines
        assert lines[0].startswith("torso: error: ")
        return lines[0].removeprefix("torso: error: ")

    return run


@pytest.fixture
def train(refuse: Refuse, tiny_model: Path, tiny_data: str, tmp_path: Path) -> Refuse:
    """A `torso train` that must be refused and leave no run directory behind."""

    def run(*words: str | Path, model: Path = tiny_model, data: str = tiny_data) -> str:
        folder = tmp_path / "run"
        line = refuse("train", "--model", model, "--data", data, "--run-dir", folder, *words)
        assert not folder.exists()
        return line

    return run
