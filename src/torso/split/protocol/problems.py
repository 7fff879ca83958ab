"""Errors on the wire: problem documents (RFC 9457) with a stable code and whether to try again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from pydantic import BaseModel

from torso.errors import ServerError, StateLostError, TransportError

PROBLEM = "application/problem+json"
Retry = Literal["never", "later", "roll_back"]
STILL_WORKING = "still_working"
"""The code of an answer that says: alive, and computing what was asked for."""
ANSWER_WITHIN_S = 10.0
"""A worker answers any request within this time, be it to say that it is still computing."""

STATUSES = {
    "bad_message": 400,
    "forbidden": 403,
    "not_found": 404,
    "unknown_job": 404,
    "stale_generation": 409,
    "copied_run": 409,
    "wrong_step": 409,
    "missing_forward": 409,
    "missing_micro_batches": 409,
    "fingerprint_mismatch": 409,
    "wrong_position": 409,
    "layers_mismatch": 422,
    "base_mismatch": 422,
    "arithmetic_mismatch": 422,
    "adapter_unsupported": 422,
    "too_long": 422,
    "wrong_shape": 422,
    "too_large": 413,
    "too_many": 422,
    "still_working": 503,
    "group_failed": 503,
    "internal": 500,
}
"""Every code, and the HTTP status that it comes with; docs/protocol.md has an anchor for each."""


class Problem(BaseModel):
    """A problem document."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str = ""
    retry: Retry


def describe(error: ServerError) -> Problem:
    """The document that a client turns back into the same error."""
    code = error.code or "internal"
    status = STATUSES.get(code, 500)
    retry: Retry = "never"
    if isinstance(error, TransportError):
        retry = "later"
    elif isinstance(error, StateLostError):
        retry = "roll_back"
    return Problem(
        type=f"urn:torso:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=error.message,
        code=code,
        remedy=error.remedy or f"See docs/protocol.md#{code}.",
        retry=retry,
    )
