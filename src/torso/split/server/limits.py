"""How much one tenant may have at a time, whatever the others do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TenantLimits:
    """Limits of one tenant; a token may name others than the server's."""

    max_jobs: int = 64
    """Jobs open at once."""
    max_held_bytes: int = 8 << 30
    """Bytes of adapters, optimizers, kept activations, answers and caches of all its jobs on one worker."""
    max_in_flight: int = 64
    """Requests that are read, wait or are computed at once, on one worker."""
    max_lora_rank: int = 256
    """Largest rank of an adapter."""
