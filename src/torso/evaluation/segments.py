"""What every score is given: outputs, and for each of them its references."""

from __future__ import annotations

from collections.abc import Sequence


def check_segments(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise ValueError unless there is one list of references, not empty, for each output.

    One missing line would shift every score, and a text in place of a list would pass for a list of letters.
    """
    if len(outputs) != len(references):
        raise ValueError(f"{len(outputs)} outputs, but {len(references)} lists of references")
    for number, texts in enumerate(references, start=1):
        if isinstance(texts, str) or not texts:
            raise ValueError(f"output {number} needs a list of references, got {texts!r}")
