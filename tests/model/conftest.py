"""The tiny GPT-2 of the fixtures, as a folder and as transformers loads it; and small random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from torso.model.config import GPT2Config
from torso.model.weights import RandomWeights

SMALL = GPT2Config(vocab_size=61, n_positions=32, n_embd=24, n_layer=5, n_head=3, initializer_range=0.2)


@pytest.fixture(scope="session")
def base(shared_data: Path) -> Path:
    """A folder in Hugging Face layout: 2 layers, width 32, 97 tokens, 64 positions."""
    return shared_data / "peft-fixtures" / "base"


@pytest.fixture(scope="session")
def reference(base: Path) -> Any:
    """The same as transformers understands it."""
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel.from_pretrained(base, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def token_ids(base: Path) -> Tensor:
    """[3, 17]."""
    return load_file(base.parent / "batch.safetensors")["input_ids"]


@pytest.fixture(scope="session")
def small() -> RandomWeights:
    """Five layers, width 24, 61 tokens, 32 positions; weights large enough for logits to differ."""
    return RandomWeights(SMALL, seed=3)
