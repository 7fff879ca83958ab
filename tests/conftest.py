"""Fixtures for every room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from torso.data.tokenizer import END_OF_TEXT

# One thread everywhere: the bits that tests compare depend on it, and tests share their cores.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Reference data that lies beside the repository; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"reference data is not there: {folder}")
    return folder


@pytest.fixture(scope="session")
def train_small() -> Callable[..., Path]:
    """A function that trains a byte-level BPE of 300 tokens and writes its tokenizer.json into a folder."""
    return _train_small


def _train_small(folder: Path, end: str = END_OF_TEXT) -> Path:
    folder.mkdir(exist_ok=True)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([" A is a pub near the river. Very very long. name : B"] * 3, trainer)
    raw.save(str(folder / "tokenizer.json"))
    return folder
