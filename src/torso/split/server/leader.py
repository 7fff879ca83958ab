"""Group operations: rank 0 runs them one after the other, over all jobs, on all workers at once.

Each operation ends everywhere before the next begins, so collectives of two jobs can never be issued in opposite
order on two workers. Only `prepare` needs a collective; before anyone enters it, everybody is asked whether they can.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from torso.errors import RefusedError, ServerError, StateLostError
from torso.split.protocol.codec import decode
from torso.split.protocol.messages import (
    Acknowledgement,
    CommitAnswer,
    CommitRequest,
    Identified,
    OpenAnswer,
    OpenRequest,
    PrepareAnswer,
    PrepareRequest,
    StateAnswer,
)
from torso.split.server.worker import Worker, check_identity


class Member(Protocol):
    """A worker as the leader sees it: itself, or one behind HTTP."""

    def run_operation(self, operation: str, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The worker's share of the operation."""

    def close(self) -> None:
        """No more operations will follow."""


class Leader:
    """Runs on rank 0; `members` are all workers by rank, the leader's own first."""

    def __init__(self, worker: Worker, members: Sequence[Member]) -> None:
        self._worker, self._members = worker, list(members)
        self._order = threading.Lock()
        self._pool = ThreadPoolExecutor(len(self._members), thread_name_prefix="members")

    def close(self) -> None:
        """Let the threads end, and close the connections to the peers."""
        for member in self._members:
            member.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def open(self, body: bytes, content_type: str) -> OpenAnswer:
        """Seed every worker, or nobody. A repeated open of the same session changes nothing."""
        request = decode(OpenRequest, body, content_type)
        with self._order:
            if self._is_repeated(request):
                return self._open_answer(request.job, seeded=False)
            try:
                staged = self._all("stage", {"content_type": content_type}, body)
                if len({answer["fingerprint"] for answer in staged}) != 1:
                    raise StateLostError("the workers were not seeded alike", code="fingerprint_mismatch")
            except ServerError:
                with contextlib.suppress(ServerError):
                    self._all("unstage", {"job": request.job})
                raise
            self._all("activate", {"job": request.job})
            return self._open_answer(request.job, seeded=True)

    def prepare(self, job: str, step: int, request: PrepareRequest) -> PrepareAnswer:
        """Combine the gradients of all micro-batches over all workers."""
        num = request.num_micro_batches
        identity = {"generation": request.generation, "session": request.session}
        with self._order:
            held = self._all("check", {"job": job, "step": step, "identity": identity})
            other = {answer["prepared"] for answer in held} - {None, num}
            if other:
                text = f"step {step} was prepared with {other.pop()} micro-batches, not {num}"
                raise StateLostError(text, code="missing_micro_batches")
            present = {index for answer in held for index in answer["indices"]}
            missing = sorted(set(range(num)) - present)
            if missing:
                listed = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
                text = f"no worker holds micro-batches [{listed}] of step {step}, {len(missing)} of {num} are missing"
                raise StateLostError(text, "Send them again, or roll back.", "missing_micro_batches")
            answers = self._all("prepare", {"job": job, "step": step, "num_micro_batches": num})
        return PrepareAnswer(
            incarnation=self._worker.incarnation,
            squared_norms=answers[0]["squared"],
            finite=answers[0]["finite"],
        )

    def commit(self, job: str, step: int, request: CommitRequest) -> CommitAnswer:
        """Make the update on all workers, and see that they agree."""
        with self._order:
            answers = self._all("commit", {"job": job, "step": step, "request": request.model_dump()})
        if len({answer["fingerprint"] for answer in answers}) != 1:
            raise StateLostError(f"the workers differ after step {step}", code="fingerprint_mismatch")
        return CommitAnswer(
            incarnation=self._worker.incarnation,
            step=step,
            fingerprint=answers[0]["fingerprint"],
            memory_bytes=max(answer["memory_bytes"] for answer in answers),
        )

    def state(self, job: str, step: int, identity: Identified) -> StateAnswer:
        """The body's state at `step`."""
        at, fingerprint, state = self._worker.job(job, identity).state(step)
        return StateAnswer(incarnation=self._worker.incarnation, step=at, fingerprint=fingerprint, state=state)

    def delete(self, job: str, identity: Identified) -> Acknowledgement:
        """Give the job's memory back; a job that is not here is gone already."""
        with self._order:
            try:
                self._worker.job(job, identity)
            except StateLostError:
                return Acknowledgement(incarnation=self._worker.incarnation)
            self._all("delete", {"job": job})
        return Acknowledgement(incarnation=self._worker.incarnation)

    def _is_repeated(self, request: OpenRequest) -> bool:
        """Whether this very session stands already; raises RefusedError for a stale or a copied run."""
        try:
            job = self._worker.job(request.job)
            check_identity(job, request)
        except StateLostError:
            return False
        return True

    def _open_answer(self, name: str, seeded: bool) -> OpenAnswer:
        job = self._worker.job(name)
        return OpenAnswer(
            incarnation=self._worker.incarnation,
            job=name,
            step=job.step,
            fingerprint=job.fingerprint,
            seeded=seeded,
        )

    def _all(self, operation: str, parameters: dict[str, Any], body: bytes = b"") -> list[dict[str, Any]]:
        """Every member's answer; when some fail, all are waited for and the first failure by rank is raised.

        A failed prepare is waited for too: a member that cannot enter the collective makes the others time out.
        """
        futures = [self._pool.submit(m.run_operation, operation, parameters, body) for m in self._members]
        failures = [error for error in (future.exception() for future in futures) if error is not None]
        if failures:
            permanent = [error for error in failures if isinstance(error, RefusedError)]
            raise (permanent or failures)[0]
        return [future.result() for future in futures]
