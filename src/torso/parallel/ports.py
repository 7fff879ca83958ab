"""Ports, looked at before anything is started."""

from __future__ import annotations

import random
import socket

from torso.errors import AddressInUseError


def check_free(host: str, first: int, count: int) -> None:
    """Raise AddressInUseError unless ports first … first + count - 1 can be listened at."""
    for port in range(first, first + count):
        listen(host, port).close()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises AddressInUseError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        remedy = "Stop what listens there, or choose another --port."
        raise AddressInUseError(f"{host}:{port} cannot be listened at: {error.strerror}", remedy) from None
    return listener


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that are free on this machine now.

    Below the range from which systems take the ports of outgoing connections: one of those could take it before it
    is listened at.
    """
    while True:
        first = random.randrange(20000, 32000 - count)
        try:
            check_free("127.0.0.1", first, count)
        except AddressInUseError:
            continue
        return first


def local_url(host: str, port: int) -> str:
    """The URL at which this machine reaches its own listener: any address means the loopback, IPv6 has brackets."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
