"""WordNet 3.0, of which METEOR takes synonyms and preparing news takes lemmas. Nothing is fetched here."""

from __future__ import annotations

from functools import cache
from typing import Any

from torso.errors import MissingResourceError

VERSION = "3.0"
"""METEOR by Hugging Face's definition is stated for this one; others give other values."""
REMEDY = "Run `make resources`, or `python scripts/fetch_resources.py` in Torso's environment."


@cache
def wordnet() -> Any:
    """NLTK's reader; raises MissingResourceError."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    try:
        # the English dictionary alone: NLTK would warn that there is no multilingual one
        reader = WordNetCorpusReader(nltk.data.find("corpora/wordnet"), _NoOtherLanguages())
        version = reader.get_version()
    except Exception as error:  # a damaged dictionary fails in whatever way the reader comes upon it
        raise missing(f"WordNet {VERSION}", error) from None
    if version != VERSION:
        held = version or "one of no version"
        raise MissingResourceError(f"WordNet {VERSION} is needed, NLTK's folders hold {held}", REMEDY)
    return reader


class _NoOtherLanguages:
    """Stands where NLTK expects its multilingual reader."""

    def fileids(self) -> list[str]:
        return []


def missing(name: str, error: Exception) -> MissingResourceError:
    """NLTK's LookupError is a page long and recommends another way; other errors (rights, a damaged file) help."""
    why = "which is not in NLTK's folders" if type(error) is LookupError else f"which cannot be read: {error}"
    return MissingResourceError(f"{name} is needed, {why}", REMEDY)
