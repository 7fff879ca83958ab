"""METEOR by Hugging Face's definition: NLTK's, on lower-cased word tokens, best reference, mean over segments.

Not the official METEOR 1.5, whose values for the same outputs are lower by a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from torso.data.wordnet import wordnet
from torso.evaluation.resources import sentence_tokenizer
from torso.evaluation.segments import check_segments


def hf_meteor(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean over segments, 0 to 1; 0 without segments. Raises MissingResourceError."""
    segments = hf_meteor_segments(outputs, references)
    return sum(segments) / len(segments) if segments else 0.0


def hf_meteor_segments(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Each segment's best value over its references (alpha 0.9, beta 3, gamma 0.5); 0 for an empty output.

    ValueError unless each output has references. Raises MissingResourceError.
    """
    check_segments(outputs, references)
    from nltk.translate.meteor_score import meteor_score

    settings = {"stemmer": _Stems(), "wordnet": _Synsets(), "alpha": 0.9, "beta": 3.0, "gamma": 0.5}
    return [
        float(meteor_score([_words(r) for r in rs], _words(output), **settings))
        for output, rs in zip(outputs, references, strict=True)
    ]


def _words(text: str) -> list[str]:
    """NLTK's word_tokenize: sentences by Punkt, words by its Treebank tokenizer."""
    from nltk.tokenize import word_tokenize

    return [
        word for sentence in sentence_tokenizer().tokenize(text) for word in word_tokenize(sentence, preserve_line=True)
    ]


class _Stems:
    """Porter's stemmer, each word stemmed once: a set's references share few words."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem = cache(PorterStemmer().stem)


class _Synsets:
    """WordNet, each word looked up once."""

    def __init__(self) -> None:
        dictionary = wordnet()

        @cache
        def synsets(word: str) -> list[Any]:
            return list(dictionary.synsets(word))

        self.synsets = synsets
