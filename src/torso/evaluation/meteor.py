"""METEOR by Hugging Face's definition: NLTK's, on lower-cased word tokens, best reference, mean over segments.

Not the official METEOR 1.5, whose values for the same outputs are lower by a third.
"""

from __future__ import annotations

from collections.abc import Sequence

from torso.evaluation.resources import sentence_tokenizer, wordnet


def hf_meteor(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean over segments, 0 to 1; raises MissingResourceError."""
    segments = hf_meteor_segments(outputs, references)
    return sum(segments) / len(segments) if segments else 0.0


def hf_meteor_segments(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Each segment's best value over its references (alpha 0.9, beta 3, gamma 0.5); 0 for an empty output."""
    from nltk.translate.meteor_score import meteor_score

    dictionary = wordnet()
    return [
        float(meteor_score([_words(r) for r in rs], _words(output), wordnet=dictionary, alpha=0.9, beta=3.0, gamma=0.5))
        for output, rs in zip(outputs, references, strict=True)
    ]


def _words(text: str) -> list[str]:
    """NLTK's word_tokenize: sentences by Punkt, words by its Treebank tokenizer."""
    from nltk.tokenize import word_tokenize

    return [
        word for sentence in sentence_tokenizer().tokenize(text) for word in word_tokenize(sentence, preserve_line=True)
    ]
