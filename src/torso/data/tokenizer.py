"""Byte-level BPE tokenizers in GPT-2's file formats."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from torso.data.text_files import decode_utf8, read_file
from torso.errors import DataError

END_OF_TEXT = "<|endoftext|>"
PIECE = 1 << 16
"""Characters of a long text that are encoded at a time."""
_SPACE = re.compile("(?<=[!-~]) (?=[A-Za-z])")
"""Where a word surely begins: one space between what is visible in ASCII and a letter."""


class Tokenizer:
    """The tokenizer of a folder that holds tokenizer.json, or vocab.json and merges.txt.

    Text never turns into the end token: `<|endoftext|>` within a text is encoded as the characters it is
    made of.
    """

    def __init__(self, folder: Path | str) -> None:
        self._tokenizer = _load(Path(folder))
        # Otherwise a text that mentions the end token would end there.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.eos_id = _end_id(self._tokenizer, Path(folder))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the end token included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the whole tokenizer: vocabulary, merges and settings."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end token."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts."""
        # One by one: the library's batches start threads, which must not be there when a process forks.
        return [self.encode(text) for text in texts]

    def encode_many(self, texts: Sequence[str], dtype: str) -> Iterator[bytes]:
        """The same ids as `encode_all` gives, for each text the bytes of a NumPy array of `dtype`; a quarter faster.

        Only where the environment keeps the library from threads. The library takes a hundred bytes and more for a
        token, so long texts go to it in pieces where that cannot change a token.
        """
        for text in texts:
            found = (self._tokenizer.encode_batch_fast([one], add_special_tokens=False) for one in self._pieces(text))
            yield b"".join(np.array(one[0].ids, dtype=dtype).tobytes() for one in found)

    def _pieces(self, text: str) -> Iterator[str]:
        start = 0
        if self._splits_at_spaces:
            while len(text) - start > PIECE and (space := _SPACE.search(text, start + PIECE)):
                yield text[start : space.start()]
                start = space.start()
        yield text[start:] if start else text

    @cached_property
    def _splits_at_spaces(self) -> bool:
        """Whether words are parted as GPT-2 does it, a space belonging to the word after it, and by nothing else."""
        splitter, added = self._tokenizer.pre_tokenizer, self._tokenizer.get_added_tokens_decoder().values()
        return (
            isinstance(splitter, pre_tokenizers.ByteLevel)
            and splitter.use_regex
            and not splitter.add_prefix_space
            and self._tokenizer.normalizer is None
            and all(token.special for token in added)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; end tokens are left out, bytes that are not UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode([i for i in ids if i != self.eos_id], skip_special_tokens=False))


def _load(folder: Path) -> tokenizers.Tokenizer:
    whole, vocabulary, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if whole.is_file():
        return _from_json(whole)
    if vocabulary.is_file() and merges.is_file():
        return _from_vocabulary(vocabulary, merges)
    raise DataError(
        f"the folder {folder} holds no tokenizer",
        "Expected tokenizer.json, or vocab.json and merges.txt, in it.",
    )


def _from_json(path: Path) -> tokenizers.Tokenizer:
    text = decode_utf8(str(path), read_file(path))
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise DataError(f"{path} is not a tokenizer: {error}") from None


def _from_vocabulary(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    try:
        bpe = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:
        raise DataError(f"{vocabulary} and {merges.name} are not a BPE vocabulary: {error}") from None
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _end_id(tokenizer: tokenizers.Tokenizer, folder: Path) -> int:
    end = _end_token(folder)
    number = tokenizer.token_to_id(end)
    if number is None:
        raise DataError(f"the tokenizer in {folder} has no end token {end!r}")
    return int(number)


def _end_token(folder: Path) -> str:
    """tokenizer_config.json's eos_token where it names one, else GPT-2's."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return END_OF_TEXT
    try:
        config: Any = json.loads(decode_utf8(str(path), read_file(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})", "Fetch it again.") from None
    token = config.get("eos_token") if isinstance(config, dict) else None
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else END_OF_TEXT
