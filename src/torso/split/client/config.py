"""How the client reaches its body servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from torso.errors import ConfigError
from torso.split.protocol.problems import ANSWER_WITHIN_S


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Settings of the wire; all of them may change on resume."""

    servers: tuple[str, ...] = ("http://127.0.0.1:8700",)
    """Body servers, the first that answers is used; one URL of a group is enough."""
    clients: int = 1
    """Client ranks on this machine."""
    window: int = 4
    """Micro-batches that a client rank has in flight at once."""
    wire: Literal["safetensors", "json"] = "safetensors"
    """How tensors travel."""
    read_timeout_s: float = 120.0
    """A worker that says nothing for this long is gone; one that computes says so every 10 seconds."""
    patience_s: float = 600.0
    """How long to wait for a lost server to come back before giving up."""

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("no body server is given", "Name one with --server http://HOST:PORT.")
        for url in self.servers:
            if not _is_server(url):
                raise ConfigError(f"server is {url!r}", "Give a URL such as http://127.0.0.1:8700.")
        if not self.read_timeout_s > 1.5 * ANSWER_WITHIN_S:
            text = f"read_timeout_s is {self.read_timeout_s}; a worker that computes says so every {ANSWER_WITHIN_S} s"
            raise ConfigError(text, f"Give more than {1.5 * ANSWER_WITHIN_S}.")
        for name in ("clients", "window", "read_timeout_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", "Give a number above 0.")


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or an address with an unclosed bracket
        return False
