"""What a message of a split takes: real messages to a process that reads them and answers in kind.

`python -m torso.planner.echo PORT` is that process; it computes nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import torch

from torso.parallel.ports import free_ports
from torso.planner.costs import Line
from torso.planner.measure import line_through, median_seconds
from torso.split.protocol.codec import decode, encode
from torso.split.protocol.messages import ForwardAnswer, ForwardRequest

ROWS = (16, 2048)
"""Positions of the two messages that a line is drawn through."""
READY_WITHIN_S = 60.0


def wire_lines(width: int) -> tuple[Line, Line]:
    """One message there or back: all of it, and what writing or reading it keeps one party busy, by its bytes."""
    port = free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", "torso.planner.echo", str(port)])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            _await(client)
            sizes = (4.0 * ROWS[0] * width, 4.0 * ROWS[1] * width)
            there_and_back = [median_seconds(partial(_ask, client, rows, width), times=30) for rows in ROWS]
            coding = [median_seconds(partial(_code, rows, width), times=30) for rows in ROWS]
    finally:
        process.terminate()
        process.wait()
    whole = line_through(sizes, (there_and_back[0] / 2.0, there_and_back[1] / 2.0))
    return whole, line_through(sizes, (coding[0] / 2.0, coding[1] / 2.0))


def _await(client: httpx.Client) -> None:
    until = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            client.get("/")
            return
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _request(rows: int, width: int) -> tuple[bytes, str]:
    message = ForwardRequest(generation=1, session="0" * 16, lengths=[rows], activations=torch.zeros(1, rows, width))
    return encode(message)


def _ask(client: httpx.Client, rows: int, width: int) -> None:
    content, kind = _request(rows, width)
    answer = client.post("/", content=content, headers={"Content-Type": kind})
    decode(ForwardAnswer, answer.content, answer.headers["content-type"])


def _code(rows: int, width: int) -> None:
    """Writing and reading alone."""
    content, kind = _request(rows, width)
    decode(ForwardRequest, content, kind)


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """An ASGI application that sends tensors back."""
    if scope["type"] != "http":
        return
    body, more = bytearray(), True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    content, kind = b"", "text/plain"
    if body:
        kind = dict(scope["headers"])[b"content-type"].decode()
        request = decode(ForwardRequest, bytes(body), kind)
        content, kind = encode(ForwardAnswer(incarnation="0" * 16, activations=request.activations))
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


if __name__ == "__main__":
    import uvicorn

    torch.set_num_threads(1)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
