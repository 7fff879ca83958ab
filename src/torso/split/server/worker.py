"""One worker: its jobs, and who may do what to them. Knows no HTTP; the app and the tests call it alike."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import torso
from torso import faults
from torso.errors import GroupError, RefusedError, StateLostError
from torso.model.blocks import ATTENTION
from torso.model.config import Cuts
from torso.parallel.arithmetic import SPLIT_DTYPES, describe, differences
from torso.parallel.group import Group
from torso.parallel.memory import peak_memory
from torso.split.protocol.codec import decode
from torso.split.protocol.messages import (
    CommitRequest,
    Identified,
    InfoAnswer,
    Limits,
    OpenRequest,
    WorkerAddress,
)
from torso.split.server.base import BaseWeights
from torso.split.server.config import ServerSettings
from torso.split.server.job import Job
from torso.training.part import Norms

EXIT_GROUP_BROKEN = 75
"""A failed collective poisons the group for good: the worker ends itself, and the agent restarts all of them."""


class Worker:
    """Holds the base weights and, by job id, what each job has on this worker."""

    def __init__(
        self,
        settings: ServerSettings,
        group: Group,
        on_broken_group: Callable[[], None] = lambda: os._exit(EXIT_GROUP_BROKEN),
    ) -> None:
        self.settings, self.group = settings, group
        self.incarnation = secrets.token_hex(8)
        self.device = torch.device(settings.devices[group.rank % len(settings.devices)])
        cuts = _cuts(settings)
        self.base = BaseWeights(settings.model, settings.init, settings.seed, cuts, self.device)
        self.arithmetic = describe(self.device, "fp32", ATTENTION)
        self._on_broken_group = on_broken_group
        self._jobs: dict[str, Job] = {}
        self._staged: dict[str, Job] = {}
        self._lock = threading.Lock()

    def info(self, load: int) -> InfoAnswer:
        """See InfoAnswer."""
        s, config = self.settings, self.base.config
        return InfoAnswer(
            incarnation=self.incarnation,
            version=torso.__version__,
            instance=s.instance,
            model=s.model,
            n_layer=config.n_layer,
            n_embd=config.n_embd,
            n_positions=config.n_positions,
            layers=[s.head_cut, s.tail_cut],
            base_fingerprint=self.base.fingerprint,
            arithmetic=self.arithmetic,
            dtypes=list(SPLIT_DTYPES),
            limits=Limits(
                max_body_bytes=s.max_body_bytes,
                max_tokens=s.max_tokens,
                max_micro_batches=s.max_micro_batches,
                max_decodings=s.max_decodings,
            ),
            workers=[WorkerAddress(rank=r, host=None, port=s.port + r) for r in range(s.workers)],
            load=load,
        )

    def job(self, name: str, identity: Identified | None = None) -> Job:
        """The job, heard from just now; raises StateLostError (unknown) or RefusedError (stale, copied)."""
        with self._lock:
            job = self._jobs.get(name)
        if job is None:
            raise StateLostError(f"job {name} is not held here", "Open it again.", "unknown_job")
        if identity is not None:
            check_identity(job, identity)
        job.heard_from = time.monotonic()
        return job

    def num_jobs(self) -> int:
        """Jobs held."""
        return len(self._jobs)

    def free_idle_jobs(self) -> list[str]:
        """Drop jobs that were not heard from for too long; returns their names.

        Those too that were staged for an opening which then failed on another worker.
        """
        oldest = time.monotonic() - self.settings.job_timeout_s
        with self._lock:
            for name in [name for name, job in self._staged.items() if job.heard_from < oldest]:
                del self._staged[name]
            idle = [name for name, job in self._jobs.items() if job.heard_from < oldest]
            for name in idle:
                del self._jobs[name]
        return idle

    # What the leader asks of every worker, itself included; `run_operation` is called in one order on all.

    def run_operation(self, operation: str, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        """One share of a group operation; the answer is JSON."""
        operations: dict[str, Callable[[dict[str, Any], bytes], dict[str, Any]]] = {
            "stage": self._stage,
            "activate": self._activate,
            "unstage": self._unstage,
            "check": self._check,
            "prepare": self._prepare,
            "commit": self._commit,
            "delete": self._delete,
        }
        if operation not in operations:
            raise RefusedError(f"no operation is called {operation!r}", "", "not_found")
        with faults.around("worker", self.group.rank, operation, parameters.get("step")):
            return operations[operation](parameters, body)

    def _stage(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Build the job beside the present one, which stays until `activate`."""
        request = decode(OpenRequest, body, parameters["content_type"])
        self._check_fits(request)
        job = Job.seed(request, self.base.execution(request))
        with self._lock:
            self._staged[request.job] = job
        return {"fingerprint": job.fingerprint}

    def _activate(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        with self._lock:
            self._jobs[parameters["job"]] = self._staged.pop(parameters["job"])
        return {}

    def _unstage(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The opening failed somewhere else."""
        with self._lock:
            self._staged.pop(parameters["job"], None)
        return {}

    def _check(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        job = self.job(parameters["job"], Identified(**parameters["identity"]))
        indices = job.indices(parameters["step"])
        return {"indices": indices, "prepared": job.prepared[0] if job.prepared else None}

    def _prepare(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        job = self.job(parameters["job"])
        try:
            norms: Norms = job.prepare(parameters["step"], parameters["num_micro_batches"], self.group)
        except GroupError:
            self._on_broken_group()
            raise StateLostError("the workers' group broke; it is being restarted", code="group_failed") from None
        return {"squared": norms.squared, "finite": norms.finite}

    def _commit(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        request = CommitRequest(**parameters["request"])
        job = self.job(parameters["job"], request)
        return {"fingerprint": job.commit(parameters["step"], request), "memory_bytes": self.memory()}

    def _delete(self, parameters: dict[str, Any], body: bytes) -> dict[str, Any]:
        with self._lock:
            self._jobs.pop(parameters["job"], None)
        return {}

    def give_up(self, reason: str) -> None:
        """Something hangs: end, so that the agent restarts the group."""
        print(f"torso: {reason}; the workers are restarted", file=sys.stderr, flush=True)
        self._on_broken_group()

    def close(self) -> None:
        """See Member; there is nothing to close."""

    def memory(self) -> int:
        """Largest memory so far: the device's, or resident."""
        return peak_memory(self.device if self.device.type == "cuda" else None)

    def _check_fits(self, request: OpenRequest) -> None:
        """Raise RefusedError unless this server can serve the job with the bits that it expects."""
        layers = [self.settings.head_cut, self.settings.tail_cut]
        if request.layers != layers:
            raise RefusedError(f"layers {request.layers} are asked for, {layers} are here", "", "layers_mismatch")
        if request.base_fingerprint not in (None, self.base.fingerprint):
            raise RefusedError("the job's base weights are others than this server's", "", "base_mismatch")
        differing = differences(request.arithmetic, self.arithmetic | {"dtype": request.dtype})
        if differing and not request.allow_inexact:
            remedy = "Make them equal, or allow other last bits with --allow-inexact."
            raise RefusedError(f"the arithmetic differs: {'; '.join(differing)}", remedy, "arithmetic_mismatch")


def check_identity(job: Job, identity: Identified) -> None:
    """Raise RefusedError for a request of an older generation, or of a copied run."""
    held = job.request
    if identity.generation < held.generation:
        message = f"generation {identity.generation} is stale, the job is at {held.generation}"
        raise RefusedError(message, "Somebody resumed this run; stop this one.", "stale_generation")
    if identity.generation > held.generation:
        raise StateLostError(f"generation {identity.generation} was not opened here", "Open it.", "unknown_job")
    if identity.session != held.session:
        message = f"generation {identity.generation} was opened by another session"
        raise RefusedError(message, "Two copies of one run directory are in use; keep one.", "copied_run")


def _cuts(settings: ServerSettings) -> Cuts:
    from torso.model.hub import config_of

    return Cuts(settings.head_cut, settings.tail_cut, config_of(settings.model).n_layer)
