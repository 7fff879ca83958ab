"""Learn `mini`'s tokenizer, a byte-level BPE: python recipes/mini/tokenizer.py --folder build/mini

Reads `<folder>/text/*.txt`, writes `<folder>/model/tokenizer.json`. The vocabulary holds the 256 bytes, the
merges and the end token, so every text can be written and any name is spelt from known pieces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END_TOKEN = "<|endoftext|>"
VOCABULARY = 4096


def learn(files: list[Path]) -> Tokenizer:
    """A tokenizer of VOCABULARY tokens, the end token the last of them as in GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in files], trainer)
    tokenizer.add_special_tokens([END_TOKEN])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/mini"))
    folder = parser.parse_args().folder
    tokenizer = learn(sorted((folder / "text").glob("*.txt")))
    if tokenizer.get_vocab_size() != VOCABULARY or tokenizer.token_to_id(END_TOKEN) != VOCABULARY - 1:
        raise SystemExit(f"{tokenizer.get_vocab_size()} tokens learnt, not {VOCABULARY}: is text missing?")
    (folder / "model").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    print(f"{VOCABULARY} tokens, {(folder / 'model' / 'tokenizer.json').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
