"""What BLEU and NIST count: n-grams of mteval-13a tokens, each match clipped over all references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

Grams = Counter[tuple[str, ...]]
_tokenize: Callable[[str], str] = Tokenizer13a()  # type: ignore[no-untyped-call]


@lru_cache(maxsize=65536)
def mteval_tokens(text: str, lower: bool) -> tuple[str, ...]:
    """A text's tokens, lower-cased afterwards or not; several metrics ask for those of the same references."""
    words = _tokenize(text)
    return tuple((words.lower() if lower else words).split())


def ngrams(words: Sequence[str], n: int) -> Grams:
    """How often each comes."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def matches(words: Sequence[str], references: Sequence[Sequence[str]], n: int) -> tuple[Grams, Grams]:
    """n-grams of the output that occur in a reference, each at most as often as in one of them; and all of them."""
    counts, best = ngrams(words, n), Grams()
    for reference in references:
        best |= ngrams(reference, n)
    return counts & best, counts
