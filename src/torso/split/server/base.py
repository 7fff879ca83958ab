"""The body's frozen weights, read once a dtype and shared by all jobs of a worker."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.errors import AdapterError, RefusedError, RequestError
from torso.model.config import Cuts
from torso.model.hub import Init, open_source
from torso.model.stages import Body
from torso.model.weights import build
from torso.parallel.arithmetic import DTYPES
from torso.split.protocol.messages import OpenRequest
from torso.training.body import BodyExecution
from torso.training.config import OptimizerConfig
from torso.training.part import TrainablePart


class BaseWeights:
    """Makes bodies for jobs around one set of frozen tensors."""

    def __init__(self, model: str, init: Init, seed: int, cuts: Cuts, device: torch.device) -> None:
        self._source = open_source(model, init, seed)
        self.config, self.cuts, self._device = self._source.config, cuts, device
        self.fingerprint = self._source.fingerprint(cuts.body)
        self._states: dict[str, dict[str, Tensor]] = {}
        self._state("fp32")

    def execution(self, request: OpenRequest) -> BodyExecution:
        """A body with fresh adapters for this job, on the shared weights. Raises RefusedError."""
        try:
            return self._execution(request)
        except AdapterError as error:
            raise RefusedError(error.message, error.remedy, "adapter_unsupported") from error
        except RequestError as error:
            raise RefusedError(error.message, error.remedy, "bad_message") from error

    def _execution(self, request: OpenRequest) -> BodyExecution:
        config = dataclasses.replace(
            self.config,
            embd_pdrop=request.dropout.embd,
            attn_pdrop=request.dropout.attn,
            resid_pdrop=request.dropout.resid,
        )
        with torch.device("meta"):
            body = Body(config, self.cuts)
        body.load_state_dict(self._state(request.dtype), assign=True)
        body.requires_grad_(False).eval()
        parameters = inject(body, _adapter(request), request.seed)
        part = TrainablePart(parameters, OptimizerConfig(**request.optimizer.model_dump()))
        return BodyExecution(body, part, request.seed)

    def _state(self, dtype: str) -> dict[str, Tensor]:
        if dtype not in self._states:
            body = build(Body, self._source, self.cuts, DTYPES[dtype], self._device)
            self._states[dtype] = dict(body.state_dict())
        return self._states[dtype]


def _adapter(request: OpenRequest) -> AdapterConfig:
    fields = request.adapter.model_dump()
    return AdapterConfig(**fields | {"targets": tuple(fields["targets"]), "modules": tuple(fields["modules"])})
