"""What worker processes do: batches of articles in, token ids out. Nothing here imports torch, which takes seconds."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from torso.data.news.cleaning import clean
from torso.data.news.normalising import Normalising, normaliser
from torso.data.tokenizer import Tokenizer
from torso.errors import TorsoError

BATCH_CHARACTERS = 1 << 20
"""A batch ends with the article that reaches this."""
DIGEST_SIZE = 16
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """From an article's text to its tokens."""

    normalising: Normalising
    tokenizer: Path | None
    """None: texts are cleaned only."""
    dtype: str = "<u2"
    """NumPy's name of the type that ids are stored in."""


@dataclass(frozen=True)
class Article:
    """A usable article: a digest of its text, and its token ids as bytes, or the text where no ids were asked for."""

    digest: bytes
    ids: bytes
    text: str = ""


def articles_of(recipe: Recipe, texts: Sequence[str]) -> list[Article | None]:
    """None where nothing is left of a text."""
    normalise, tokenizer = _tools(recipe)
    ready = [normalise(clean(text)) for text in texts]
    digests = [blake2b(text.encode(), digest_size=DIGEST_SIZE).digest() for text in ready]
    if tokenizer is None:
        made = [Article(digest, b"", text) for digest, text in zip(digests, ready, strict=True)]
    else:
        ids = tokenizer.encode_many(ready, recipe.dtype)
        made = [Article(digest, one) for digest, one in zip(digests, ids, strict=True)]
    return [article if text else None for article, text in zip(made, ready, strict=True)]


_kept: dict[Recipe, tuple[Callable[[str], str], Tokenizer | None]] = {}


def _tools(recipe: Recipe) -> tuple[Callable[[str], str], Tokenizer | None]:
    """Read once a process."""
    if recipe not in _kept:
        tokenizer = None if recipe.tokenizer is None else Tokenizer(recipe.tokenizer)
        _kept[recipe] = normaliser(recipe.normalising), tokenizer
    return _kept[recipe]


@contextmanager
def pool(num_workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, however it ends."""
    context = multiprocessing.get_context("spawn")
    made = ProcessPoolExecutor(num_workers, context, initializer=_begin)
    try:
        yield made
    finally:
        made.shutdown(cancel_futures=True)


def _begin() -> None:
    # Ctrl-C reaches the whole group; the parent alone decides what it means
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def in_order(
    pool: ProcessPoolExecutor, function: Callable[[Given], Made], given: Iterable[Given], ahead: int
) -> Iterator[tuple[Given, Made]]:
    """Each with what came of it, in order; at most `ahead` are under way, so that memory is bounded."""
    waiting: deque[tuple[Given, Future[Made]]] = deque()
    try:
        for one in given:
            waiting.append((one, pool.submit(function, one)))
            if len(waiting) >= ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    except BrokenProcessPool:
        raise TorsoError("a worker process ended before its time", "Run the same command again to go on.") from None
