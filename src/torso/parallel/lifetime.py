"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Be killed when the parent ends, however it ends. Linux only; elsewhere nothing happens.

    `parent` is the expected parent's id (default: the environment's TORSO_PARENT). A parent that ended before the call
    is noticed by comparing it afterwards.
    """
    if not sys.platform.startswith("linux"):
        return
    expected = parent if parent is not None else int(os.environ.get("TORSO_PARENT", "0"))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if expected and os.getppid() != expected:
        os._exit(1)
