"""What METEOR needs beside the code: WordNet 3.0 and Punkt's English parameters. Nothing is fetched here."""

from __future__ import annotations

from functools import cache
from typing import Any

from torso.errors import MissingResourceError


@cache
def wordnet() -> Any:
    """NLTK's reader of WordNet 3.0; raises MissingResourceError."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    root = _find(nltk, "corpora/wordnet", "WordNet 3.0")
    # the English dictionary alone: NLTK would warn that there is no multilingual one
    return WordNetCorpusReader(root, _NoOtherLanguages())


@cache
def sentence_tokenizer() -> Any:
    """Punkt for English; raises MissingResourceError."""
    import nltk
    from nltk.tokenize.punkt import PunktTokenizer

    _find(nltk, "tokenizers/punkt_tab/english", "Punkt")
    return PunktTokenizer("english")


def available() -> bool:
    """Whether METEOR can be computed here."""
    try:
        wordnet()
        sentence_tokenizer()
    except MissingResourceError:
        return False
    return True


class _NoOtherLanguages:
    """Stands where NLTK expects its multilingual reader."""

    def fileids(self) -> list[str]:
        return []


def _find(nltk: Any, path: str, name: str) -> Any:
    try:
        return nltk.data.find(path)
    except LookupError:
        raise MissingResourceError(
            f"METEOR needs {name}, which is not in NLTK's folders",
            "Run `make resources`, or `python scripts/fetch_resources.py` in Torso's environment.",
        ) from None
