"""What a rank sends and receives, counted where it is sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes since the start of the process, and the memory of a body worker where there is one."""

    sent: int = 0
    received: int = 0
    memory_bytes: int = 0


class Counter:
    """Adds up the bytes of collectives.

    What a rank sends and receives in one over `ranks` ranks, by the algorithms that move the least (rings), as NCCL
    accounts for its bus bandwidth (nccl-tests, doc/PERFORMANCE.md); a backend may move more.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def all_reduce(self, num_bytes: int, ranks: int) -> None:
        """2 (W - 1) / W of the tensor."""
        self._bytes += 2 * num_bytes * (ranks - 1) // ranks

    def exchange(self, num_bytes: int, ranks: int) -> None:
        """(W - 1) / W of the whole tensor: a reduce-scatter's input, an all-gather's output, an all-to-all's either."""
        self._bytes += num_bytes * (ranks - 1) // ranks

    def read(self) -> Traffic:
        """So far; as much is received as sent."""
        return Traffic(self._bytes, self._bytes)
