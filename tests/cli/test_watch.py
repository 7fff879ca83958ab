"""Which workers have frozen."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.split.bad_network import GOOD, SILENCE, behind_bad_network
from tests.split.harness import base_folder

from torso.cli.watch import silent
from torso.parallel.ports import free_ports


def test_a_worker_that_says_nothing_has_frozen_and_a_slow_one_has_not(tmp_path: Path) -> None:
    fault = GOOD
    with behind_bad_network(base_folder(tmp_path / "base"), 2, lambda: fault) as (_, network):
        urls = [f"http://127.0.0.1:{network.port + rank}" for rank in range(2)]
        assert silent(urls, 2.0) == []
        fault = "delay"
        assert silent(urls, 2.0) == []
        fault = SILENCE
        assert silent(urls, 0.5) == urls


def test_a_worker_that_ended_has_not_frozen() -> None:
    assert silent([f"http://127.0.0.1:{free_ports(1)}"], 0.5) == []


def test_a_frozen_worker_costs_no_more_than_the_stated_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begun = time.monotonic()
        assert len(silent([f"http://127.0.0.1:{listener.getsockname()[1]}"], 0.3)) == 1
        assert time.monotonic() - begun < 2.0
