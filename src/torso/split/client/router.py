"""Which worker gets the next micro-batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Router:
    """Least busy first, by the requests this client has under way; ties go round from the rank's own place."""

    def __init__(self, workers: Sequence[str], rank: int) -> None:
        self._workers = list(workers[rank % len(workers) :]) + list(workers[: rank % len(workers)])
        self._under_way = dict.fromkeys(self._workers, 0)
        self._lock = threading.Lock()

    def take(self, worker: str | None = None) -> str:
        """The worker for one more request: the given one, or the least busy."""
        with self._lock:
            chosen = worker or min(self._workers, key=lambda url: self._under_way[url])
            self._under_way[chosen] += 1
            return chosen

    def give_back(self, worker: str) -> None:
        """A request to the worker has ended."""
        with self._lock:
            self._under_way[worker] -= 1
