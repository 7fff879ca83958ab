"""What `torso serve` does while its workers serve: say when they are ready, and end those that freeze."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import httpx
import psutil

from torso.parallel.ports import local_url
from torso.split.server.config import ServerSettings


def watch(settings: ServerSettings, ended: threading.Event) -> None:
    """Until `ended`, in a thread. The agent sees only processes that end; it restarts the group after a kill here."""
    urls = [local_url(settings.host, settings.port + rank) for rank in range(settings.workers)]
    if not wait_until_ready(urls, settings.instance, ended):
        return
    layers = f"blocks {settings.head_cut} to {settings.tail_cut - 1} of {settings.model}"
    workers = f"{len(urls)} worker{'' if len(urls) == 1 else 's'}"
    print(f"ready: {layers}, {workers} at {' '.join(urls)} (process {os.getpid()})", flush=True)
    while not ended.is_set():
        _watch_these_ranks(urls, settings.group_timeout_s, ended)
        wait_until_ready(urls, settings.instance, ended)


def wait_until_ready(urls: Sequence[str], instance: str, ended: threading.Event) -> bool:
    """Until all workers of this very launch answer (an older server at the port would not do), or until `ended`."""
    waiting = list(urls)
    while waiting and not ended.is_set():
        try:
            answer = httpx.get(f"{waiting[0]}/readyz", timeout=5.0, trust_env=False)
            if answer.json().get("instance") == instance:
                waiting.pop(0)
                continue
        except (httpx.HTTPError, ValueError):
            pass
        ended.wait(0.1)
    return not waiting


def silent(urls: Sequence[str], timeout_s: float) -> list[str]:
    """Those that take a request and say nothing for too long. One that ended is the agent's to notice."""
    frozen = []
    for url in urls:
        try:
            httpx.get(f"{url}/healthz", timeout=timeout_s, trust_env=False)
        except httpx.TimeoutException:
            frozen.append(url)
        except httpx.HTTPError:
            pass
    return frozen


def _watch_these_ranks(urls: Sequence[str], timeout_s: float, ended: threading.Event) -> None:
    """Until the launch has ended or they are restarted, by the agent or because one of them has frozen.

    Restarted ones are not asked before they were ready: while they read their weights they are silent too.
    """
    ranks = psutil.Process().children()
    while psutil.Process().children() == ranks and not ended.wait(min(5.0, timeout_s / 4)):
        if (frozen := silent(urls, timeout_s)) and psutil.Process().children() == ranks and not ended.is_set():
            print(f"torso: the worker at {frozen[0]} has said nothing for {timeout_s:g} s", file=sys.stderr, flush=True)
            for rank in ranks:
                rank.kill()  # and not waited for: that is the agent's, which learns from it how they ended
