"""Settings of a body server's launch, handed to its workers as a JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torso.errors import ConfigError
from torso.split.protocol.problems import ANSWER_WITHIN_S


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What all workers of one launch share."""

    model: str
    """"mini", a published size, or a folder."""
    instance: str
    """Random identity of the launch."""
    secret: str
    """Known to the workers of the launch only; guards their own endpoints."""
    init: Literal["pretrained", "random"] = "pretrained"
    seed: int = 0
    """Of random base weights."""
    head_cut: int
    tail_cut: int
    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8700
    """Of worker 0; worker r listens at port + r."""
    workers: int = 1
    devices: tuple[str, ...] = ("cpu",)
    """By rank, used in turn."""
    threads: int = 1
    """Intra-op threads of a worker on a CPU."""
    job_timeout_s: float = 1800.0
    """A job not heard from for this long gives its memory back."""
    max_body_bytes: int = 1 << 30
    """Largest request."""
    max_tokens: int = 1 << 17
    """Most tokens (with padding) of one micro-batch."""
    progress_file: str = ""
    """Touched after each committed step, so that the launcher sees progress between two failures."""
    max_micro_batches: int = 1024
    """Most micro-batches of one step of a job: each of them holds memory until the commit."""
    max_decodings: int = 64
    """Most key-value caches of a job at once."""
    group_timeout_s: float = 60.0
    """A collective that takes longer has failed; a worker that says nothing at all for this long has frozen."""
    hang_timeout_s: float = 600.0
    """A computation (of one request) that takes longer hangs: the group is restarted."""
    answer_within_s: float = ANSWER_WITHIN_S
    """A request that takes longer is answered in between: still computing."""

    def __post_init__(self) -> None:
        if self.workers < 1 or not 1 <= self.port <= 65536 - self.workers:
            raise ConfigError(f"{self.workers} workers at port {self.port}", "Ports must lie in 1 … 65535.")
        for name in ("threads", "max_body_bytes", "max_tokens", "max_micro_batches", "max_decodings"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", "Give 1 or more.")
        for name in ("job_timeout_s", "group_timeout_s", "hang_timeout_s", "answer_within_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}", "Give a number of seconds above 0.")

    def write(self, path: Path) -> None:
        """Write for the workers; readable by the owner only, because of the secret."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ServerSettings:
        """As written by `write`."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**fields | {"devices": tuple(fields["devices"])})
