"""`torso prepare news ARTICLES.csv … --out DIR`: from CSV files of articles to blocks of tokens."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from torso.cli.parsing import parse
from torso.cli.processes import make_out, num_cores
from torso.data.news.normalising import Normalising, Words
from torso.data.news.prepare import NewsConfig, prepare, report
from torso.errors import ConfigError, Interrupted
from torso.report.units import duration
from torso.training.lock import locked

SAY_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class NewsArguments:
    """Clean, tokenize and pack articles: CSV files with the header of All the News 1 or 2.

    The same command with the same --out goes on where it was.
    """

    inputs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """CSV files."""
    out: Path
    """Folder for shards, manifest and report."""
    model: str = "mini"
    """Whose tokenizer is used."""
    tokenizer: str | None = None
    """Folder of another tokenizer."""
    vocab_size: int | None = None
    """Learn a byte-level BPE vocabulary of this size from the articles instead; it lands in DIR/tokenizer."""
    block_size: int = 512
    """Tokens of a block, at most the model's positions."""
    dev_share: float = 0.05
    """Share of the articles, by a hash of their text, that training does not see."""
    unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode's normal form."""
    lower_case: bool = False
    """Make everything lower-case."""
    words: Words = "keep"
    """stem: Porter's stems in place of words. lemmatise: WordNet's lemmas. Both are for English."""
    workers: int | None = None
    """Processes that clean and tokenize. Default: all cores."""
    json: bool = False
    """Print the manifest as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Prepare, and print what became of the rows."""
    words = list(arguments)
    if words[:1] not in (["news"], ["-h"], ["--help"]):
        raise ConfigError(
            f"{words[0] if words else 'nothing'} is not what can be prepared", "Write `torso prepare news`."
        )
    options = parse(NewsArguments, "prepare news", words[1:] if words[0] == "news" else words, positional=False)
    config = _config(options).checked()
    out = make_out(options.out)
    with locked(out):
        try:
            manifest = prepare(config, out, _Progress())
        except KeyboardInterrupt:
            raise Interrupted("stopped; what is done is kept", "Go on with the same command.") from None
    if options.json:
        print((out / "manifest.json").read_text(encoding="utf-8"), end="")
    else:
        print(report(manifest), end="")
    return 0


def _config(options: NewsArguments) -> NewsConfig:
    from torso.model.hub import tokenizer_folder

    if options.vocab_size is not None and options.tokenizer is not None:
        raise ConfigError("vocab_size and tokenizer are both given", "Leave one of them out.")
    folder = None
    if options.vocab_size is None:
        folder = Path(options.tokenizer or tokenizer_folder(options.model)).absolute()
    return NewsConfig(
        inputs=options.inputs,
        tokenizer=folder,
        vocab_size=options.vocab_size,
        block_size=options.block_size,
        dev_share=options.dev_share,
        normalising=Normalising(unicode=options.unicode, lower_case=options.lower_case, words=options.words),
        workers=num_cores() if options.workers is None else options.workers,
    )


class _Progress:
    """A line on stderr now and then."""

    def __init__(self) -> None:
        self._said = self._started = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """Bytes of all inputs."""
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now - self._said < SAY_EVERY_S or done <= self._first:
            return
        self._said = now
        rate = (done - self._first) / (now - self._started)
        left = duration((total - done) / rate)
        text = f"prepare: {100 * done / total:.0f} % of {total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, {left} left"
        print(text, file=sys.stderr, flush=True)
