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


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's setting, and Linux's resident size")
def test_large_tensors_that_are_freed_go_back_to_the_system_where_that_is_asked_for() -> None:
    program = """
import sys, psutil, torch
from torso.parallel.memory import return_large_tensors
if sys.argv[1] == "asked":
    return_large_tensors()
size = lambda: psutil.Process().memory_info().rss
del_ = torch.ones(7 << 20)  # freed, it raises the size from which glibc asks the system
del del_
before = size()
large, small = [], []
for _ in range(20):
    large.append(torch.ones(4 << 20))
    small.append(torch.ones(1 << 10))
large.clear()
print((size() - before) >> 20)
"""
    kept, back = (
        int(subprocess.check_output([sys.executable, "-c", program, word], text=True)) for word in ("not", "asked")
    )
    assert kept > 200
    assert back < 50
