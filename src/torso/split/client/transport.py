"""The only seam to the network: requests out, answers or Torso's errors back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from torso.errors import RefusedError, ServerError, StateLostError, TransportError
from torso.split.protocol.codec import SAFETENSORS, decode, encode
from torso.split.protocol.messages import Message
from torso.split.protocol.problems import STILL_WORKING, Problem

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")

_ERRORS: dict[str, type[ServerError]] = {
    "never": RefusedError,
    "later": TransportError,
    "roll_back": StateLostError,
}
_TRANSIENT = (408, 425, 429)
"""Of the answers that blame the request, those after which the same request can succeed."""


class Transport:
    """Sends messages with one httpx client; counts bytes; safe to use from several threads."""

    def __init__(self, client: httpx.Client, media_type: str = SAFETENSORS) -> None:
        self._client, self._media_type = client, media_type
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0

    def call(self, method: str, url: str, answer: type[Answer], message: Message | None = None) -> Answer:
        """One request. Raises TransportError, StateLostError or RefusedError."""
        content, headers = b"", {"Accept": self._media_type}
        if message is not None:
            content, headers["Content-Type"] = encode(message, self._media_type)
        try:
            response = self._client.request(method, url, content=content, headers=headers)
        except httpx.InvalidURL as error:
            raise RefusedError(f"{url} is no URL: {error}", "Check --server.") from error
        except httpx.HTTPError as error:
            raise TransportError(f"{method} {url} failed: {error or type(error).__name__}") from error
        self._count(len(content), len(response.content))
        if not response.is_success:
            raise _problem(url, response)
        try:
            return decode(answer, response.content, response.headers.get("content-type", ""))
        except RefusedError as error:
            raise TransportError(f"{url} answered something unreadable: {error.message}") from error

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _count(self, sent: int, received: int) -> None:
        with self._lock:
            self.sent += sent
            self.received += received


def connect(servers: tuple[str, ...], read_timeout_s: float, media_type: str = SAFETENSORS) -> Transport:
    """A transport of its own connections. A proxy of the environment is never asked for this very machine."""
    direct = {f"all://{_host(url)}": None for url in servers if is_loopback(url)}
    timeout = httpx.Timeout(read_timeout_s, connect=10.0)
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    return Transport(httpx.Client(timeout=timeout, limits=limits, mounts=direct), media_type)


def is_loopback(url: str) -> bool:
    """Whether the URL names this machine."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _host(url: str) -> str:
    """As it stands in a URL: an IPv6 address in brackets."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def persist(work: Callable[[], Result], patience_s: float, on_wait: Callable[[str], None] | None = None) -> Result:
    """Repeat `work` while it raises TransportError, with growing pauses, for at most `patience_s` seconds.

    A server that names a longer pause (Retry-After) gets it. One that says it is still computing is alive: patience
    begins anew.
    """
    deadline, pause, told = time.monotonic() + patience_s, 0.1, False
    while True:
        try:
            return work()
        except TransportError as error:
            if error.code == STILL_WORKING:
                deadline, pause = time.monotonic() + patience_s, 0.1
            # Jitter keeps several clients of one lost server from coming back in step.
            wait = max(pause * random.uniform(0.8, 1.2), error.retry_after_s)
            if time.monotonic() + wait > deadline:
                raise
            if on_wait is not None and not told and pause > 1.0:
                on_wait(f"waiting for the body server ({error})")
                told = True
        time.sleep(wait)
        pause = min(pause * 2.0, 5.0)


def _problem(url: str, response: httpx.Response) -> ServerError:
    """The error that a problem document stands for; an answer that is none comes from something in between."""
    status = response.status_code
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        if status >= 500 or status in _TRANSIENT:
            return _transient(TransportError(f"{url} answered HTTP {status}"), response)
        return RefusedError(f"{url} is no body server (HTTP {status})", "Check --server, and what lies in between.")
    error = _ERRORS[problem.retry](problem.detail or problem.title, problem.remedy, problem.code)
    return _transient(error, response) if isinstance(error, TransportError) else error


def _transient(error: TransportError, response: httpx.Response) -> TransportError:
    """With the pause that the answer asks for; one given as a date is left to our own pauses."""
    after = response.headers.get("retry-after", "")
    if after.isascii() and after.isdigit():
        error.retry_after_s = float(after[:6])
    return error
