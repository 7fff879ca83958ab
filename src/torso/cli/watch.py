"""What `torso serve` does while its workers serve: say when they are ready, and end those that freeze."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import httpx
import psutil

from torso.parallel.ports import local_url
from torso.split.server.config import ServerSettings


def watch(settings: ServerSettings) -> None:
    """For ever, in a thread. The agent, which sees only processes that end, restarts the group after a kill here."""
    urls = [local_url(settings.host, settings.port + rank) for rank in range(settings.workers)]
    wait_until_ready(urls, settings.instance)
    layers = f"blocks {settings.head_cut} to {settings.tail_cut - 1} of {settings.model}"
    workers = f"{len(urls)} worker{'' if len(urls) == 1 else 's'}"
    print(f"ready: {layers}, {workers} at {' '.join(urls)} (process {os.getpid()})", flush=True)
    while True:
        _watch_these_ranks(urls, settings.group_timeout_s)
        wait_until_ready(urls, settings.instance)


def wait_until_ready(urls: Sequence[str], instance: str) -> None:
    """Until all workers of this very launch answer; an older server at the port would not do."""
    waiting = list(urls)
    while waiting:
        try:
            answer = httpx.get(f"{waiting[0]}/readyz", timeout=5.0, trust_env=False)
            if answer.json().get("instance") == instance:
                waiting.pop(0)
                continue
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.1)


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


def _watch_these_ranks(urls: Sequence[str], timeout_s: float) -> None:
    """Until they are restarted, by the agent or because one of them has frozen.

    Restarted ones are not asked before they were ready: while they read their weights they are silent too.
    """
    ranks = psutil.Process().children()
    while psutil.Process().children() == ranks:
        if (frozen := silent(urls, timeout_s)) and psutil.Process().children() == ranks:
            print(f"torso: the worker at {frozen[0]} has said nothing for {timeout_s:g} s", file=sys.stderr, flush=True)
            for rank in ranks:
                rank.kill()  # and not waited for: that is the agent's, which learns from it how they ended
        time.sleep(min(5.0, timeout_s / 4))
