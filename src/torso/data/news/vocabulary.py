"""A byte-level BPE vocabulary of one's own, in the file format of every other tokenizer here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from torso.data.tokenizer import END_OF_TEXT
from torso.errors import ConfigError
from torso.files import new_directory

SMALLEST = 257
"""All bytes and the end token."""
SAMPLE_CHARACTERS = 128 << 20
"""So much text, the first of the training split, is what merges are learnt from: counting words takes memory."""


def check_size(vocab_size: int) -> None:
    """Raises ConfigError."""
    if not SMALLEST <= vocab_size <= 1 << 20:
        raise ConfigError(f"vocab_size is {vocab_size}", f"Give {SMALLEST} (bytes and the end token) to {1 << 20}.")


def train_vocabulary(texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Learn merges as GPT-2 has them (Radford et al. 2019, section 2.2) and write tokenizer.json."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])  # the last one, as in GPT-2
    with new_directory(folder) as made:
        (made / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
