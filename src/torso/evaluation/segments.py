"""What every score is given: outputs, and for each of them its references; and what scores are made of.

A metric's *statistics* are an array [N, K]: of each of N segments, K numbers that add up over segments. Its value is a
function of the K sums, so that resampling segments needs no text again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def check_segments(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise ValueError unless there is one list of references, not empty, for each output.

    One missing line would shift every score, and a text in place of a list would pass for a list of letters.
    """
    if len(outputs) != len(references):
        raise ValueError(f"{len(outputs)} outputs, but {len(references)} lists of references")
    for number, texts in enumerate(references, start=1):
        if isinstance(texts, str) or not texts:
            raise ValueError(f"output {number} needs a list of references, got {texts!r}")


def mean_statistics(values: Sequence[float]) -> Array:
    """[N, 2]: statistics of a score whose value is the mean over segments."""
    return np.array([(value, 1.0) for value in values]).reshape(-1, 2)


def ratio(sums: Array) -> Array:
    """[..., 2] → [...]: the first sum / the second; 0 where that is 0."""
    above, below = sums[..., 0], sums[..., 1]
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0.0)
