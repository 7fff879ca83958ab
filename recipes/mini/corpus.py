"""The text as tokens: documents encoded once, shuffled anew each epoch and packed into blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

Tokens = npt.NDArray[np.uint16]
HELD_OUT_EVERY = 100


def encode(folder: Path, tokenizer: tokenizers.Tokenizer, end: int) -> list[Tokens]:
    """Every document of `<folder>/text`, ended by the end token."""
    documents: list[Tokens] = []
    for path in sorted((folder / "text").glob("*.txt")):
        texts = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
        documents += [np.array([*found.ids, end], np.uint16) for found in tokenizer.encode_batch(texts)]
    return documents


class Corpus:
    """Blocks of `length` + 1 tokens: `train(step)` is a pure function of the step and the seed."""

    def __init__(self, folder: Path, length: int, seed: int) -> None:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
        documents = encode(folder, tokenizer, tokenizer.get_vocab_size() - 1)
        order = np.random.default_rng(seed).permutation(len(documents))
        held_out = [documents[i] for i in order[::HELD_OUT_EVERY]]
        self.documents = [documents[i] for n, i in enumerate(order) if n % HELD_OUT_EVERY]
        self.length, self.seed = length, seed
        self.held_out = self._packed(held_out)
        self.tokens = sum(map(len, self.documents))
        self.blocks_per_epoch = (self.tokens - 1) // length
        self._epoch, self._blocks = -1, self.held_out

    def _packed(self, documents: list[Tokens]) -> Tokens:
        """[blocks, length + 1]: neighbours share one token, the last of one and the first of the next."""
        tokens = np.concatenate(documents)
        count = (len(tokens) - 1) // self.length
        view = np.lib.stride_tricks.sliding_window_view(tokens, self.length + 1)
        return view[:: self.length][:count]

    def train(self, step: int, batch: int) -> Tokens:
        """The `batch` blocks of step 0, 1, ...: every block once an epoch, in an order of its own."""
        steps = self.blocks_per_epoch // batch
        epoch, place = divmod(step, steps)
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            blocks = self._packed([self.documents[i] for i in random.permutation(len(self.documents))])
            self._epoch, self._blocks = epoch, blocks[random.permutation(len(blocks))]
        return self._blocks[place * batch : (place + 1) * batch]
