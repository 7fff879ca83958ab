"""The HTTP face of a worker. Handlers only pass bytes on; decoding, computing and encoding happen in other threads."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from torso.errors import RefusedError, ServerError, TransportError
from torso.split.protocol.codec import JSON, SAFETENSORS, decode, encode
from torso.split.protocol.messages import (
    CommitRequest,
    Identified,
    Message,
    PrepareRequest,
)
from torso.split.protocol.problems import PROBLEM, describe
from torso.split.server.endpoints import Endpoints
from torso.split.server.leader import Leader
from torso.split.server.metrics import exposition
from torso.split.server.under_way import UnderWay
from torso.split.server.worker import Worker

SECRET_HEADER = "x-torso-secret"


class WorkerApp:
    """Routes, and the threads that do the work."""

    def __init__(self, worker: Worker, leader: Leader | None) -> None:
        self.worker, self.leader = worker, leader
        self.endpoints = Endpoints(worker)
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        # Operations of the whole group; fetching state must not wait behind them, hence the second thread.
        self._operations = ThreadPoolExecutor(2, thread_name_prefix="operations")
        self.under_way = UnderWay(worker.settings.answer_within_s, worker.settings.hang_timeout_s)
        self.requests: dict[str, int] = {}

    @property
    def load(self) -> int:
        """Requests under way or waiting."""
        return len(self.under_way)

    async def read(self, request: Request) -> bytes:
        """The body, refused while it arrives when it is too large."""
        limit = self.worker.settings.max_body_bytes
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise RefusedError(
                    f"the request has more than {limit} bytes", "Use smaller micro-batches.", "too_large"
                )
            chunks.append(chunk)
        return b"".join(chunks)

    async def compute(self, name: str, request: Request, work: Callable[[bytes, str], Message]) -> Response:
        """Read, then decode, compute and encode in the compute thread."""
        return await self._run(self._compute, name, request, work)

    async def operate(self, name: str, request: Request, work: Callable[[Leader, bytes, str], Message]) -> Response:
        """The same for an operation of the whole group, on its leader."""
        leader = self.leader
        if leader is None:
            raise RefusedError("this worker does not lead its group", "Ask the worker of rank 0.", "not_found")
        return await self._run(self._operations, name, request, lambda body, kind: work(leader, body, kind))

    async def group_operation(self, operation: str, request: Request) -> Response:
        """The leader's request for this worker's share of an operation."""
        given = request.headers.get(SECRET_HEADER, "")
        if not hmac.compare_digest(given.encode(), self.worker.settings.secret.encode()):
            raise RefusedError("this endpoint is for the group's own workers", "", "forbidden")
        parameters = json.loads(request.headers.get("x-torso-parameters", "{}"))
        body = await self.read(request)

        def work() -> bytes:
            return json.dumps(self.worker.run_operation(operation, parameters, body)).encode()

        return Response(await self.under_way.run(self._operations, object(), work, patient=True), media_type=JSON)

    def close(self) -> None:
        """Let the threads end; what is under way is not waited for."""
        for pool in (self._compute, self._operations):
            pool.shutdown(wait=False, cancel_futures=True)
        if self.leader is not None:
            self.leader.close()

    async def _run(
        self, pool: ThreadPoolExecutor, name: str, request: Request, work: Callable[[bytes, str], Message]
    ) -> Response:
        body, kind = await self.read(request), request.headers.get("content-type", "")
        media_type = JSON if JSON in request.headers.get("accept", "") else SAFETENSORS
        self.requests[name] = self.requests.get(name, 0) + 1
        # Not the headers: who repeats a request may do so over another connection.
        key = (request.method, request.url.path, request.url.query, kind, media_type, body)
        data, content_type = await self.under_way.run(pool, key, lambda: encode(work(body, kind), media_type))
        return Response(data, media_type=content_type)


def create_app(worker: Worker, leader: Leader | None = None) -> FastAPI:
    """The app of one worker; the leading one gets the leader too."""
    state = WorkerApp(worker, leader)
    app = FastAPI(lifespan=_lifespan(state), docs_url=None, redoc_url=None, openapi_url=None)
    app.state.torso = state
    _add_error_handlers(app)
    _add_health(app, state)
    _add_job_routes(app, state)
    _add_compute_routes(app, state)
    app.add_api_route("/v1/group/{operation}", state.group_operation, methods=["POST"])
    return app


def _lifespan(state: WorkerApp) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(keep(state)) for keep in (_free_idle_jobs, _watch)]
        yield
        for task in tasks:
            task.cancel()
        state.close()

    return lifespan


async def _free_idle_jobs(state: WorkerApp) -> None:
    while True:
        await asyncio.sleep(min(30.0, state.worker.settings.job_timeout_s / 4))
        state.worker.free_idle_jobs()


async def _watch(state: WorkerApp) -> None:
    """Give up when a computation hangs; what only takes long goes on."""
    limit = state.worker.settings.hang_timeout_s
    while True:
        await asyncio.sleep(limit / 8)
        if state.under_way.hangs():
            state.worker.give_up(f"a computation has taken more than {limit:g} s")


def _add_error_handlers(app: FastAPI) -> None:
    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServerError)
        problem = describe(error)
        return Response(problem.model_dump_json(), problem.status, media_type=PROBLEM)

    async def missing(request: Request, error: Exception) -> Response:
        text = f"there is no {request.method} {request.url.path}"
        return await known(request, RefusedError(text, "See docs/protocol.md#endpoints.", "not_found"))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        text = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        return await known(request, RefusedError(text, "See docs/protocol.md#endpoints.", "bad_message"))

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # to nobody: the client hung up in the middle of its request

    async def unknown(request: Request, error: Exception) -> Response:
        return await known(request, TransportError(f"internal error: {type(error).__name__}", "See the server's log."))

    app.add_exception_handler(ServerError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(404, missing)
    app.add_exception_handler(405, missing)
    app.add_exception_handler(Exception, unknown)


def _add_health(app: FastAPI, state: WorkerApp) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "alive", "instance": state.worker.settings.instance}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        return {"status": "ready", "instance": state.worker.settings.instance}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition(state.worker, state.load, state.requests), media_type="text/plain; version=0.0.4")

    @app.get("/v1/info")
    async def info() -> Response:
        return Response(state.worker.info(state.load).model_dump_json(), media_type=JSON)


def _add_job_routes(app: FastAPI, state: WorkerApp) -> None:
    """Operations of the whole group."""

    @app.post("/v1/jobs")
    async def open_job(request: Request) -> Response:
        return await state.operate("open", request, lambda leader, body, kind: leader.open(body, kind))

    @app.post("/v1/jobs/{job}/steps/{step}/prepare")
    async def prepare(job: str, step: int, request: Request) -> Response:
        def work(leader: Leader, body: bytes, kind: str) -> Message:
            return leader.prepare(job, step, decode(PrepareRequest, body, kind))

        return await state.operate("prepare", request, work)

    @app.post("/v1/jobs/{job}/steps/{step}/commit")
    async def commit(job: str, step: int, request: Request) -> Response:
        def work(leader: Leader, body: bytes, kind: str) -> Message:
            return leader.commit(job, step, decode(CommitRequest, body, kind))

        return await state.operate("commit", request, work)

    @app.get("/v1/jobs/{job}/state")
    async def fetch(job: str, step: int, generation: int, session: str, request: Request) -> Response:
        identity = _identity(generation, session)
        return await state.operate("state", request, lambda leader, body, kind: leader.state(job, step, identity))

    @app.delete("/v1/jobs/{job}")
    async def delete(job: str, generation: int, session: str, request: Request) -> Response:
        identity = _identity(generation, session)
        return await state.operate("delete", request, lambda leader, body, kind: leader.delete(job, identity))


def _add_compute_routes(app: FastAPI, state: WorkerApp) -> None:
    """What any worker does alone."""
    endpoints = state.endpoints

    @app.get("/v1/jobs/{job}")
    async def status(job: str, request: Request) -> Response:
        return await state.compute("status", request, lambda body, kind: endpoints.status(job))

    def add(path: str, name: str, work: Callable[..., Message]) -> None:
        app.add_api_route(path, _handler(state, name, work), methods=["POST"])

    micro_batch = "/v1/jobs/{job}/steps/{step}/microbatches/{index}"
    add(f"{micro_batch}/forward", "forward", endpoints.forward)
    add(f"{micro_batch}/backward", "backward", endpoints.backward)
    add("/v1/jobs/{job}/inference", "inference", endpoints.infer)
    add("/v1/jobs/{job}/generations", "open_generation", endpoints.open_generation)
    add("/v1/jobs/{job}/generations/{generation_id}", "generate", endpoints.generate)

    @app.delete("/v1/jobs/{job}/generations/{generation_id}")
    async def close_generation(
        job: str, generation_id: str, generation: int, session: str, request: Request
    ) -> Response:
        identity = _identity(generation, session)

        def work(body: bytes, kind: str) -> Message:
            return endpoints.close_generation(identity, job, generation_id)

        return await state.compute("close_generation", request, work)


def _handler(state: WorkerApp, name: str, work: Callable[..., Message]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        path: dict[str, Any] = {k: _number(v) if k in ("step", "index") else v for k, v in request.path_params.items()}
        return await state.compute(name, request, lambda body, kind: work(body=body, kind=kind, **path))

    return handle


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RefusedError(f"{text[:40]!r} in the path is no number", "See docs/protocol.md#endpoints.", "bad_message")
    return int(text)


def _identity(generation: int, session: str) -> Identified:
    body = json.dumps({"generation": generation, "session": session}).encode()
    return decode(Identified, body, JSON)
