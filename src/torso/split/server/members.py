"""The leader's way to its peers."""

from __future__ import annotations

import json
from typing import Any

import httpx
from pydantic import ValidationError

from torso.errors import RefusedError, ServerError, StateLostError, TransportError
from torso.split.protocol.problems import Problem

_ERRORS: dict[str, type[ServerError]] = {"never": RefusedError, "later": TransportError, "roll_back": StateLostError}


class HttpMember:
    """A worker of the same launch, over HTTP with the launch's secret."""

    def __init__(self, url: str, secret: str, timeout_s: float) -> None:
        self._client = httpx.Client(
            base_url=url, headers={"x-torso-secret": secret}, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def run_operation(self, operation: str, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        """See Member; a peer that does not answer has taken the group's state with it."""
        headers = {"x-torso-parameters": json.dumps(parameters)}
        try:
            response = self._client.post(f"/v1/group/{operation}", content=body, headers=headers)
        except httpx.HTTPError as error:
            raise StateLostError(f"a worker of the group does not answer: {error}", code="group_failed") from error
        if response.is_success:
            answer: dict[str, Any] = response.json()
            return answer
        try:
            problem = Problem.model_validate_json(response.content)
        except ValidationError:
            raise StateLostError(f"a worker answered HTTP {response.status_code}", code="group_failed") from None
        raise _ERRORS[problem.retry](problem.detail, problem.remedy, problem.code)
