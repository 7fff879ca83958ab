"""From CSV files of articles to shards of tokens: rows are read here, cleaned and tokenized in worker processes, and
written here in the order of the rows, so that the bytes do not depend on how many workers there are.

Every so often everything is synced and the place noted; a preparation that is started again goes on from there.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from torso.data.news.manifest import FORMAT, NAME, SPLITS, TOKENIZER, Manifest, describe_split
from torso.data.news.normalising import Normalising
from torso.data.news.progress import NAME as PROGRESS
from torso.data.news.progress import Progress, check_request
from torso.data.news.rows import Row, read_rows
from torso.data.news.storage import Growing, SplitWriter, sha256_of
from torso.data.news.vocabulary import SAMPLE_CHARACTERS, check_size, train_vocabulary
from torso.data.news.work import BATCH_CHARACTERS, DIGEST_SIZE, Article, Recipe, articles_of, in_order, pool
from torso.data.tokenizer import Tokenizer
from torso.errors import ConfigError, DataError, RunDirectoryError
from torso.files import remove_temporaries, replace_atomically, storing

SAVE_EVERY_S = 20.0
BATCH_ROWS = 4096
BATCHES_AHEAD = 3
"""For each worker."""
SEEN = "seen.digests"


class Say(Protocol):
    """Is told how far it is, now and then."""

    def __call__(self, done: int, total: int) -> None:
        """Bytes of all inputs."""


@dataclass(frozen=True, kw_only=True)
class NewsConfig:
    """What is prepared, and how."""

    inputs: tuple[Path, ...]
    tokenizer: Path | None
    """Folder; None where a vocabulary is learnt."""
    vocab_size: int | None = None
    block_size: int = 512
    dev_share: float = 0.05
    normalising: Normalising = field(default_factory=Normalising)
    workers: int = 1
    shard_tokens: int = 1 << 24

    def checked(self) -> NewsConfig:
        """Itself; raises a RequestError when a setting is wrong, or a file is not there."""
        if not self.inputs:
            raise ConfigError("no file of articles is given", "Write `torso prepare news ARTICLES.csv --out DIR`.")
        for path in self.inputs:
            if not path.is_file():
                raise DataError(f"there is no file {path}", "Check the path; a pattern must match something.")
        if self.block_size < 2 or self.workers < 1 or self.shard_tokens < self.block_size:
            text = f"block_size is {self.block_size}, workers {self.workers}, shard_tokens {self.shard_tokens}"
            raise ConfigError(text, "Give at least 2, 1, and a block.")
        if not 0.0 <= self.dev_share < 1.0:
            raise ConfigError(f"dev_share is {self.dev_share}", "Give a number from 0 up to, not including, 1.")
        if self.vocab_size is not None:
            check_size(self.vocab_size)
        self.normalising.check()
        return self

    def request(self) -> dict[str, Any]:
        """Everything that decides the bytes."""
        inputs = [{"name": p.name, "size": p.stat().st_size, "sha256": sha256_of(p)} for p in self.inputs]
        tokenizer = None if self.tokenizer is None else Tokenizer(self.tokenizer).fingerprint
        return {
            "inputs": inputs,
            "tokenizer": tokenizer,
            "vocab_size": self.vocab_size,
            "block_size": self.block_size,
            "dev_share": self.dev_share,
            "normalising": asdict(self.normalising),
            "shard_tokens": self.shard_tokens // self.block_size * self.block_size,
        }


def prepare(config: NewsConfig, out: Path, say: Say) -> Manifest:
    """Do it, or what is left of it. Raises a RequestError, or StorageError; the same call then goes on."""
    request = config.checked().request()
    remove_temporaries(out)
    if (out / NAME).is_file():
        manifest = Manifest.load(out)
        check_request(out, manifest.request, request)
        manifest.check(out)
        _forget_progress(out)
        return manifest
    progress = Progress.load(out, request)
    if progress is None:
        if any(path.name != "lock" for path in out.iterdir()):
            raise RunDirectoryError(f"{out} is not empty and holds no prepared news", "Choose another --out.")
        progress = Progress(request=request)
        progress.save(out)
    folder = config.tokenizer
    if folder is None:
        folder = out / TOKENIZER
        if not folder.exists():
            _learn(config, folder, say)
    return _Preparation(config, out, progress, folder, say).run()


def _learn(config: NewsConfig, folder: Path, say: Say) -> None:
    """A vocabulary from the beginning of the training split, each text once."""
    assert config.vocab_size is not None
    recipe = Recipe(normalising=config.normalising, tokenizer=None)

    def texts() -> Iterator[str]:
        characters, seen = 0, set[bytes]()
        with pool(config.workers) as workers:
            for _, articles in _worked(config, workers, recipe, Progress(request={}), say):
                for article in articles:
                    if article is None or article.digest in seen or _is_dev(article, config.dev_share):
                        continue
                    seen.add(article.digest)
                    characters += len(article.text)
                    yield article.text
                if characters >= SAMPLE_CHARACTERS:
                    return

    train_vocabulary(texts(), config.vocab_size, folder)


@dataclass(frozen=True)
class _Batch:
    """Rows of one file that are worked on together, and where to go on after them: file, byte, row."""

    input: int
    rows: tuple[Row, ...]
    after: tuple[int, int, int]


def _batches(config: NewsConfig, progress: Progress) -> Iterator[_Batch]:
    offset, number = progress.offset, progress.row
    for input in range(progress.input, len(config.inputs)):
        rows, size = list[Row](), 0
        for row in read_rows(config.inputs[input], offset, number):
            rows.append(row)
            size += len(row.text)
            if row.resumable and (size >= BATCH_CHARACTERS or len(rows) >= BATCH_ROWS):
                yield _Batch(input, tuple(rows), (input, row.end, row.number))
                rows, size = [], 0
        yield _Batch(input, tuple(rows), (input + 1, 0, 0))
        offset = number = 0


def _worked(
    config: NewsConfig, workers: Any, recipe: Recipe, progress: Progress, say: Say
) -> Iterator[tuple[_Batch, list[Article | None]]]:
    """Batches with the articles of their usable rows, in order."""
    sizes = [path.stat().st_size for path in config.inputs]
    work = functools.partial(_articles_of_rows, recipe)
    for batch, articles in in_order(workers, work, _batches(config, progress), config.workers * BATCHES_AHEAD):
        yield batch, articles
        number, offset, _ = batch.after
        say(sum(sizes[:number]) + offset, sum(sizes))


def _articles_of_rows(recipe: Recipe, batch: _Batch) -> list[Article | None]:
    return articles_of(recipe, [row.text for row in batch.rows if not row.reason])


class _Preparation:
    """The writing side."""

    def __init__(self, config: NewsConfig, out: Path, progress: Progress, tokenizer: Path, say: Say) -> None:
        self._config, self._out, self._progress, self._say = config, out, progress, say
        self._tokenizer = Tokenizer(tokenizer)
        dtype = "<u2" if self._tokenizer.vocab_size <= 1 << 16 else "<u4"
        self._recipe = Recipe(normalising=config.normalising, tokenizer=tokenizer, dtype=dtype)
        self._shard_tokens = int(progress.request["shard_tokens"])
        end = np.array([self._tokenizer.eos_id], dtype=dtype).tobytes()
        self._writers = {
            split: SplitWriter(out, split, progress.written[split], self._shard_tokens, end) for split in SPLITS
        }
        self._seen_file = Growing(out / SEEN, DIGEST_SIZE * progress.articles)
        known = (out / SEEN).read_bytes()
        self._seen = {known[i : i + DIGEST_SIZE] for i in range(0, len(known), DIGEST_SIZE)}
        self._saved_at = time.monotonic()

    def run(self) -> Manifest:
        """To the end."""
        with ExitStack() as stack:
            for file in self._files():
                stack.callback(file.close)
            workers = stack.enter_context(pool(self._config.workers))
            for batch, articles in _worked(self._config, workers, self._recipe, self._progress, self._say):
                self._take(batch, articles)
                if time.monotonic() - self._saved_at > SAVE_EVERY_S:
                    self._save()
            self._save()
        return self._finish()

    def _take(self, batch: _Batch, articles: list[Article | None]) -> None:
        left = iter(articles)
        for row in batch.rows:
            place = f"{self._config.inputs[batch.input].name}, row {row.number}"
            if row.reason:
                self._progress.count(row.reason, place)
            elif (article := next(left)) is None:
                self._progress.count("empty", place)
            elif article.digest in self._seen:
                self._progress.count("duplicate", place)
            else:
                self._add(article)
        self._progress.input, self._progress.offset, self._progress.row = batch.after

    def _add(self, article: Article) -> None:
        self._seen.add(article.digest)
        self._seen_file.append(article.digest)
        split = "dev" if _is_dev(article, self._config.dev_share) else "train"
        self._writers[split].add(article.ids)
        self._progress.count(split)

    def _save(self) -> None:
        for file in self._files():
            file.sync()
        self._progress.save(self._out)
        self._saved_at = time.monotonic()

    def _files(self) -> list[SplitWriter | Growing]:
        return [*self._writers.values(), self._seen_file]

    def _finish(self) -> Manifest:
        written: Mapping[str, Any] = self._progress.written
        if not self._progress.articles:
            raise DataError("no row holds an article that can be used", f"See {self._out / PROGRESS} for why.")
        splits = {
            name: describe_split(self._out, name, one.articles, one.tokens, self._shard_tokens)
            for name, one in written.items()
        }
        manifest = Manifest(
            format=FORMAT,
            request=self._progress.request,
            tokenizer=self._tokenizer.fingerprint,
            vocab_size=self._tokenizer.vocab_size,
            eos_id=self._tokenizer.eos_id,
            dtype=self._recipe.dtype,
            block_size=self._config.block_size,
            shard_tokens=self._shard_tokens,
            rows=self._progress.rows,
            examples={reason: tuple(places) for reason, places in self._progress.examples.items()},
            splits=splits,
        )
        replace_atomically(self._out / "report.txt", report(manifest).encode())
        manifest.save(self._out)
        _forget_progress(self._out)
        return manifest


def _forget_progress(out: Path) -> None:
    for path in (out / PROGRESS, out / SEEN):
        with storing(path):
            path.unlink(missing_ok=True)


def _is_dev(article: Article, share: float) -> bool:
    """By a hash of the text, so that an article stays where it is when others come."""
    return int.from_bytes(article.digest[:8], "little") < share * 2.0**64


def report(manifest: Manifest) -> str:
    """What became of the rows, and what came out, for people."""
    used = sum(manifest.rows.get(split, 0) for split in SPLITS)
    everything = sum(manifest.rows.values())
    lines = [f"{everything:,} rows: {used:,} used, {everything - used:,} not"]
    for reason, count in sorted(manifest.rows.items()):
        if reason not in SPLITS:
            places = "; ".join(manifest.examples.get(reason, ()))
            lines.append(f"  {count:>9,} {reason} ({places}{'; …' if count > len(manifest.examples[reason]) else ''})")
    for name, split in manifest.splits.items():
        blocks = split.num_blocks(manifest.block_size)
        last = split.tokens % manifest.block_size
        short = {0: "", 1: " (the last end token is over, and left out)"}.get(last, f", the last of {last}")
        lines.append(
            f"{name}: {split.articles:,} articles, {split.tokens:,} tokens, {blocks:,} blocks of"
            f" {manifest.block_size}{short}, {len(split.shards)} shards"
        )
    lines.append(f"vocabulary: {manifest.vocab_size:,} tokens; fingerprint {manifest.fingerprint[:16]}")
    return "\n".join(lines) + "\n"
