"""What METEOR needs beside the code: WordNet 3.0 and Punkt's English parameters. Nothing is fetched here."""

from __future__ import annotations

from functools import cache
from typing import Any

from torso.errors import MissingResourceError

VERSION = "3.0"
"""METEOR by Hugging Face's definition is stated for this WordNet; others give other values."""
REMEDY = "Run `make resources`, or `python scripts/fetch_resources.py` in Torso's environment."


@cache
def wordnet() -> Any:
    """NLTK's reader of WordNet 3.0; raises MissingResourceError."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    try:
        # the English dictionary alone: NLTK would warn that there is no multilingual one
        reader = WordNetCorpusReader(nltk.data.find("corpora/wordnet"), _NoOtherLanguages())
        version = reader.get_version()
    except Exception as error:  # a damaged dictionary fails in whatever way the reader comes upon it
        raise _missing(f"WordNet {VERSION}", error) from None
    if version != VERSION:
        held = version or "one of no version"
        raise MissingResourceError(f"METEOR needs WordNet {VERSION}, NLTK's folders hold {held}", REMEDY)
    return reader


@cache
def sentence_tokenizer() -> Any:
    """Punkt for English; raises MissingResourceError."""
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        return PunktTokenizer("english")
    except Exception as error:  # as above
        raise _missing("Punkt", error) from None


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


def _missing(name: str, error: Exception) -> MissingResourceError:
    """NLTK's LookupError is a page long and recommends another way; other errors (rights, a damaged file) help."""
    why = "which is not in NLTK's folders" if type(error) is LookupError else f"which cannot be read: {error}"
    return MissingResourceError(f"METEOR needs {name}, {why}", REMEDY)
