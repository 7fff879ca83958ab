"""A bad network between clients and workers: a proxy over real sockets, in threads of this process."""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tests.split.harness import Servers

from torso.parallel.ports import free_ports

GOOD, SILENCE = "good", "silence"


class BadNetwork:
    """Listens at `port + r` for each worker r, which really listens at `behind + r`; `choose()` names each fault."""

    def __init__(self, workers: int, choose: Callable[[], str]) -> None:
        self.port, self.behind = free_ports(workers), free_ports(workers)
        self.happened: collections.Counter[str] = collections.Counter()
        self._choose, self._lock = choose, threading.Lock()
        self._listeners = [_Listener(("127.0.0.1", self.port + r), self.behind + r, self) for r in range(workers)]

    def next_fault(self) -> str:
        """What happens to the next request."""
        with self._lock:
            fault = self._choose()
            self.happened[fault] += 1
            return fault

    def __enter__(self) -> BadNetwork:
        for listener in self._listeners:
            threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.shutdown()
            listener.server_close()


def sometimes(faults: list[str], seed: int, share: float = 0.3) -> Callable[[], str]:
    """A share of the requests meets one of the faults, by chance."""
    chance = random.Random(seed)
    return lambda: chance.choice(faults) if chance.random() < share else GOOD


@contextlib.contextmanager
def behind_bad_network(
    base: Path, workers: int, choose: Callable[[], str], **settings: Any
) -> Iterator[tuple[Servers, BadNetwork]]:
    """Workers that clients can only reach through it."""
    network = BadNetwork(workers, choose)
    with network, Servers(base, workers, port=network.port, listen=network.behind, **settings) as servers:
        yield servers, network


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], behind: int, network: BadNetwork) -> None:
        self.behind, self.network = behind, network
        super().__init__(address, _Connection)

    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # at once: where it lingers for no time, this is a reset


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Listener)
        with contextlib.suppress(OSError):
            while (request := _read(self.rfile)) is not None:
                if not FAULTS[self.server.network.next_fault()](self.connection, request, self.server.behind):
                    return


def _read(file: BinaryIO | Any) -> bytes | None:
    """One HTTP message with its body; None at the connection's end."""
    head, length = b"", 0
    while not head.endswith(b"\r\n\r\n"):
        line = file.readline()
        if not line:
            return None
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
        head += line
    body = file.read(length)
    return head + body if len(body) == length else None


def _ask(request: bytes, port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as upstream, upstream.makefile("rb") as file:
        upstream.sendall(request)
        answer = _read(file)
    if answer is None:
        raise ConnectionResetError("the worker hung up")
    return answer


def _reset(connection: socket.socket) -> None:
    """Let the connection's end be a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# What can happen to a request; each returns whether the connection goes on.


def _good(client: socket.socket, request: bytes, port: int) -> bool:
    client.sendall(_ask(request, port))
    return True


def _delay(client: socket.socket, request: bytes, port: int) -> bool:
    time.sleep(0.05)
    answer = _ask(request, port)
    time.sleep(0.05)
    client.sendall(answer)
    return True


def _half_request(reset: bool) -> Callable[[socket.socket, bytes, int], bool]:
    def fault(client: socket.socket, request: bytes, port: int) -> bool:
        with socket.create_connection(("127.0.0.1", port)) as upstream:
            upstream.sendall(request[: (request.index(b"\r\n\r\n") + 4 + len(request)) // 2])
            if reset:
                _reset(upstream)
                _reset(client)
        return False

    return fault


def _half_answer(reset: bool) -> Callable[[socket.socket, bytes, int], bool]:
    def fault(client: socket.socket, request: bytes, port: int) -> bool:
        answer = _ask(request, port)
        client.sendall(answer[: (answer.index(b"\r\n\r\n") + 4 + len(answer)) // 2])
        if reset:
            _reset(client)
        return False

    return fault


def _shorten(client: socket.socket, request: bytes, port: int) -> bool:
    """A whole HTTP answer with half of its body."""
    head, _, body = _ask(request, port).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    half = body[: len(body) // 2]
    client.sendall(b"\r\n".join([*lines, b"content-length: %d" % len(half), b"", half]))
    return True


def _drop(client: socket.socket, request: bytes, port: int) -> bool:
    """The worker acted; nobody learns of it."""
    _ask(request, port)
    _reset(client)
    return False


def _repeat(client: socket.socket, request: bytes, port: int) -> bool:
    _ask(request, port)
    return _good(client, request, port)


def _repeat_at_once(client: socket.socket, request: bytes, port: int) -> bool:
    _later(0.0, request, port)
    return _good(client, request, port)


def _repeat_late(client: socket.socket, request: bytes, port: int) -> bool:
    """Again when the client is steps, or an opening, further."""
    _later(0.3, request, port)
    return _good(client, request, port)


def _later(seconds: float, request: bytes, port: int) -> None:
    def ask() -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):
            _ask(request, port)

    threading.Thread(target=ask, daemon=True).start()


def _silence(client: socket.socket, request: bytes, port: int) -> bool:
    """The process is frozen: connections stand, nothing is ever said."""
    return client.recv(1) != b""


FAULTS: dict[str, Callable[[socket.socket, bytes, int], bool]] = {
    GOOD: _good,
    SILENCE: _silence,
    "delay": _delay,
    "reset_in_the_request": _half_request(reset=True),
    "truncate_the_request": _half_request(reset=False),
    "reset_in_the_answer": _half_answer(reset=True),
    "truncate_the_answer": _half_answer(reset=False),
    "shorten_the_answer": _shorten,
    "drop_the_answer": _drop,
    "repeat": _repeat,
    "repeat_at_once": _repeat_at_once,
    "repeat_late": _repeat_late,
}
KINDS = [name for name in FAULTS if name not in (GOOD, SILENCE)]
