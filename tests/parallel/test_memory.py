from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from torso.parallel.memory import peak_resident

MEGABYTE = 1 << 20


def test_the_peak_stays_when_memory_is_given_back() -> None:
    before = psutil.Process().memory_info().rss
    filled = b"x" * (64 * MEGABYTE)
    del filled
    assert peak_resident() >= before + 60 * MEGABYTE


@pytest.mark.slow
def test_what_the_starting_process_holds_is_not_counted() -> None:
    program = "from torso.parallel.memory import peak_resident; print(peak_resident())"
    alone = int(subprocess.check_output([sys.executable, "-c", program]))
    filled = b"x" * (alone + 400 * MEGABYTE)
    beside = int(subprocess.check_output([sys.executable, "-c", program], preexec_fn=lambda: None))
    assert len(filled) > beside
    assert abs(beside - alone) < 100 * MEGABYTE
