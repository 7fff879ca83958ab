"""One form for what can be written in several: Unicode, case, and, where asked for, a word's ending."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from torso.data.wordnet import wordnet

_WORD = re.compile(r"[^\W\d_]+")
Words = Literal["keep", "stem", "lemmatise"]


@dataclass(frozen=True, kw_only=True)
class Normalising:
    """How a clean text is normalised."""

    unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode's normal form."""
    lower_case: bool = False
    """Make everything lower-case."""
    words: Words = "keep"
    """stem: Porter's stems in place of words. lemmatise: WordNet's lemmas. Both are for English."""

    def check(self) -> None:
        """Raise MissingResourceError where something is missing for it."""
        if self.words == "lemmatise":
            _lemmatiser()


def normaliser(config: Normalising) -> Callable[[str], str]:
    """The function that it stands for."""
    steps: list[Callable[[str], str]] = []
    form = config.unicode
    if form != "none":
        steps.append(lambda text: text if text.isascii() else unicodedata.normalize(form, text))
    if config.lower_case:
        steps.append(str.lower)
    if config.words != "keep":
        one = _stemmer() if config.words == "stem" else _lemmatiser()
        each = lru_cache(maxsize=1 << 16)(one)
        steps.append(lambda text: _WORD.sub(lambda word: each(word[0]), text))

    def normalise(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return normalise


def _stemmer() -> Callable[[str], str]:
    from nltk.stem.porter import PorterStemmer

    stem = PorterStemmer().stem
    return lambda word: str(stem(word, to_lowercase=False))


def _lemmatiser() -> Callable[[str], str]:
    """By WordNet's rules and exceptions, as a noun, else as a verb. Raises MissingResourceError."""
    reader = wordnet()

    def lemma(word: str) -> str:
        return str(reader.morphy(word, "n") or reader.morphy(word, "v") or word)

    return lemma
