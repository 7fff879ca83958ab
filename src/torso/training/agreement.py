"""How the ranks of a group come to one mind: votes, and work that the leader does for all."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any

import torch

import torso.errors
from torso.errors import ServerError, TorsoError
from torso.parallel.group import Group


class Vote(enum.IntEnum):
    """What a rank wants; the largest wins."""

    OK = 0
    STOP = 1
    ROLL_BACK = 2
    FATAL = 3


def vote(group: Group, own: Vote) -> Vote:
    """The group's decision: the gravest of all votes."""
    return Vote(max(int(one) for one in group.all_gather(torch.tensor([int(own)]))))


def on_leader(group: Group, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` returns on rank 0, on every rank; its TorsoError is raised on every rank too.

    The other ranks do not run `work`. Its result must be JSON.
    """
    if group.rank == 0:
        try:
            message: dict[str, Any] = {"result": work()}
        except TorsoError as error:
            message = {"error": _describe(error)}
        encoded = group.broadcast_bytes(json.dumps(message).encode())
    else:
        encoded = group.broadcast_bytes(None)
    answer = json.loads(encoded)
    if "error" in answer:
        failure = _rebuild(answer["error"])
        failure.told = group.rank != 0
        raise failure
    result: dict[str, Any] = answer["result"]
    return result


def _describe(error: TorsoError) -> dict[str, str]:
    code = error.code if isinstance(error, ServerError) else ""
    return {"class": type(error).__name__, "message": error.message, "remedy": error.remedy, "code": code}


def _rebuild(fields: dict[str, str]) -> TorsoError:
    cls: type[TorsoError] = getattr(torso.errors, fields["class"])
    if issubclass(cls, ServerError):
        return cls(fields["message"], fields["remedy"], fields["code"])
    return cls(fields["message"], fields["remedy"])
