"""What METEOR needs beside the code: WordNet 3.0 and Punkt's English parameters. Nothing is fetched here."""

from __future__ import annotations

from functools import cache
from typing import Any

from torso.data.wordnet import missing, wordnet
from torso.errors import MissingResourceError


@cache
def sentence_tokenizer() -> Any:
    """Punkt for English; raises MissingResourceError."""
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        return PunktTokenizer("english")
    except Exception as error:  # a damaged file fails in whatever way the reader comes upon it
        raise missing("Punkt", error) from None


def available() -> bool:
    """Whether METEOR can be computed here."""
    try:
        wordnet()
        sentence_tokenizer()
    except MissingResourceError:
        return False
    return True
