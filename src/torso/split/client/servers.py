"""Finding a body server that answers, and the workers that it names."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from torso.errors import RefusedError, ServerMismatchError, StateLostError, TransportError
from torso.split.client.job import JobSpec
from torso.split.client.transport import Transport, persist
from torso.split.protocol.messages import InfoAnswer, OpenAnswer, OpenRequest

OPEN_PATIENCE_S = 1.0
"""How long an opening is repeated at one server before the next one is asked."""


def info(transport: Transport, url: str) -> InfoAnswer:
    """What the server at `url` says of itself; raises TransportError or RefusedError."""
    return transport.call("GET", f"{url.rstrip('/')}/v1/info", InfoAnswer)


def worker_urls(url: str, answer: InfoAnswer) -> list[str]:
    """URL of every worker, by rank; a worker without a host of its own is reached where `url` points."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    bare = [worker.host or host for worker in sorted(answer.workers, key=lambda w: w.rank)]
    ports = [worker.port for worker in sorted(answer.workers, key=lambda w: w.rank)]
    hosts = [f"[{h}]" if ":" in h else h for h in bare]
    return [f"{parts.scheme}://{h}:{port}" for h, port in zip(hosts, ports, strict=True)]


def find(transport: Transport, servers: Sequence[str], spec: JobSpec) -> list[str]:
    """The workers of the first server that answers and fits; by rank.

    Raises TransportError when none answers, ServerMismatchError when one answers that cannot serve the job.
    """
    failures = []
    for url in servers:
        try:
            return _workers_at(transport, url, spec)
        except TransportError as error:
            failures.append(str(error))
    raise TransportError(f"no body server answers: {'; '.join(failures)}")


def open_job(
    transport: Transport, servers: Sequence[str], spec: JobSpec, request: OpenRequest
) -> tuple[list[str], OpenAnswer]:
    """The job on the first server that answers, fits and takes it: its workers by rank, and its answer.

    One whose group is broken just now is passed over like one that is not there. Raises as `find` does, and
    RefusedError.
    """
    failures = []
    for url in servers:
        try:
            workers = _workers_at(transport, url, spec)
            # Opening elsewhere leaves the job's memory behind here, so a lost answer is asked for again first.
            opened = persist(
                lambda leader=workers[0]: transport.call("POST", f"{leader}/v1/jobs", OpenAnswer, request),  # type: ignore[misc]
                OPEN_PATIENCE_S,
            )
            return workers, opened
        except (TransportError, StateLostError) as error:
            failures.append(str(error))
    raise TransportError(f"no body server answers: {'; '.join(failures)}")


def _workers_at(transport: Transport, url: str, spec: JobSpec) -> list[str]:
    answer = info(transport, url)
    spec.check(answer, url)
    return worker_urls(url, answer)


def check_before_start(transport: Transport, servers: Sequence[str], spec: JobSpec) -> list[str]:
    """`find`, for the command line: a server that is not there is the request's fault (exit code 2)."""
    try:
        return find(transport, servers, spec)
    except (TransportError, RefusedError) as error:
        raise ServerMismatchError(
            f"there is no body server at {', '.join(servers)} ({error.message})",
            "Start one with `torso serve`, or name another with --server.",
        ) from error
