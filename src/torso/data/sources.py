"""From what the user typed after --data to a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torso.data.corpus import Corpus
from torso.data.demo import demo_corpus
from torso.data.download import Say, official_e2e, say_on_stderr
from torso.data.e2e import load_e2e
from torso.data.jsonl import load_jsonl
from torso.data.news.packed import load_news
from torso.errors import DataError

_EXPECTED = (
    "Expected demo, e2e, e2e:PATH (the official zip, its folder, or CSV files), jsonl:PATH (a file, or a folder with"
    " train.jsonl, dev.jsonl, test.jsonl), or news:PATH (a folder that `torso prepare news` made)."
)

_READERS: dict[str, Callable[[str], Corpus]] = {"e2e": load_e2e, "jsonl": load_jsonl, "news": load_news}


def load(spec: str, say: Say = say_on_stderr) -> Corpus:
    """The corpus that `spec` names; `say` is told when something is downloaded. DataError when it cannot be
    had."""
    kind, _, where = spec.partition(":")
    if spec == "demo":
        return demo_corpus()
    if spec == "e2e":
        return dataclasses.replace(load_e2e(str(official_e2e(say))), name="e2e")
    if kind in _READERS and where:
        return _READERS[kind](where)
    raise DataError(f"the data set {spec!r} is not known", _EXPECTED)
