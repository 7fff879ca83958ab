"""Who a request comes from."""

from __future__ import annotations

from dataclasses import dataclass

from torso.split.server.limits import TenantLimits


@dataclass(frozen=True)
class Tenant:
    """Whoever holds one token. Jobs belong to tenants; to others they do not exist."""

    name: str
    limits: TenantLimits | None = None
    """None means the server's own."""


ANYBODY = Tenant("")
"""Every request's tenant on a server without tokens."""
