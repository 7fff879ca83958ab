"""Whether the other workers of the launch are alive: a process can freeze without ending."""

from __future__ import annotations

from collections.abc import Sequence

import httpx


class Pulse:
    """Asks each of the others for its health; one that once answered and then stays silent is gone."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self._urls, self._timeout_s = list(urls), timeout_s
        self._known: set[str] = set()

    def silent(self) -> list[str]:
        """Those that accept a request and say nothing for too long. One that ended is the agent's to notice."""
        return [url for url in self._urls if self._is_silent(url)]

    def _is_silent(self, url: str) -> bool:
        try:
            httpx.get(f"{url}/healthz", timeout=self._timeout_s, trust_env=False)
        except httpx.TimeoutException:
            return url in self._known  # before its first answer it may still be reading weights
        except httpx.HTTPError:
            return False
        self._known.add(url)
        return False
