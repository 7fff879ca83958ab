"""Stand-ins for the network between a client and real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest
from tests.split import harness

from torso.split.client.transport import Transport


@dataclass(frozen=True)
class Sent:
    """One request as it left the client."""

    method: str
    path: str
    content_type: str
    body: bytes


class Wiretap(httpx.BaseTransport):
    """Passes everything on, and keeps what was sent."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self._lock = threading.Lock()
        self.sent: list[Sent] = []
        self.under_way = 0
        self.most_under_way = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See class."""
        kind = request.headers.get("content-type", "")
        with self._lock:
            self.sent.append(Sent(request.method, request.url.path, kind, request.read()))
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            response = self._inner.handle_request(request)
            response.read()
            return response
        finally:
            with self._lock:
                self.under_way -= 1

    def close(self) -> None:
        """All connections."""
        self._inner.close()


class LosesAnswers(Wiretap):
    """The server acts, but the first answer to every different request is lost on the way."""

    def __init__(self, loses: Callable[[str], bool] = lambda path: True, *, once_a_path: bool = False) -> None:
        super().__init__()
        self._loses, self._once_a_path = loses, once_a_path
        self._seen: set[tuple[str, str, bytes]] = set()
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See class."""
        response = super().handle_request(request)
        url = request.url.path if self._once_a_path else str(request.url)
        key = (request.method, url, b"" if self._once_a_path else request.read())
        with self._lock:
            first = key not in self._seen and self._loses(request.url.path)
            self._seen.add(key)
            self.lost += first
        if first:
            raise httpx.ReadError("the answer was lost", request=request)
        return response


class Killed(BaseException):
    """The client is no more."""


class Mortal(Wiretap):
    """The client dies at its `life`-th request, before it was sent or after it was answered, and says no word more."""

    def __init__(self, life: int, answered: bool) -> None:
        super().__init__()
        self._left, self._answered = life, answered

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See class."""
        with self._lock:
            self._left -= 1
            left = self._left
        if request.method == "DELETE" and left <= 0:
            raise httpx.ConnectError("a dead client gives nothing back", request=request)
        if left < 0 or (left == 0 and not self._answered):
            raise Killed
        response = super().handle_request(request)
        if left == 0:
            raise Killed
        return response


def over(network: httpx.BaseTransport, media_type: str = "application/vnd.safetensors") -> Transport:
    """A transport over a stand-in."""
    return Transport(httpx.Client(transport=network, timeout=20.0, trust_env=False), media_type)


def put_between(monkeypatch: pytest.MonkeyPatch, network: httpx.BaseTransport) -> None:
    """Let the harness's clients use the stand-in."""
    monkeypatch.setattr(harness, "connect", lambda servers, timeout, media_type: over(network, media_type))
