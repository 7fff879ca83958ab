"""What a rank sends and receives, counted where it is sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes since the start of the process, and the memory of a body worker where there is one."""

    sent: int = 0
    received: int = 0
    memory_bytes: int = 0
