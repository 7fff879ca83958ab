"""What a client asks a body server to hold: everything about a job but its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

import torso
from torso.adapters.config import AdapterConfig
from torso.errors import ServerMismatchError
from torso.model.config import Cuts
from torso.parallel.arithmetic import Dtype, differences
from torso.split.protocol.messages import (
    AdapterSettings,
    DropoutSettings,
    InfoAnswer,
    OpenRequest,
    OptimizerSettings,
)
from torso.training.config import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The body's share of a run's settings."""

    cuts: Cuts
    base_fingerprint: str | None
    """Of the body's frozen weights; None where this party has none of them to compare."""
    adapter: AdapterConfig
    optimizer: OptimizerConfig
    dtype: Dtype
    seed: int
    dropout: tuple[float, float, float]
    """Embedding, attention, residual."""
    arithmetic: Mapping[str, str]
    allow_inexact: bool = False

    def open_request(
        self, job: str, generation: int, session: str, step: int, state: dict[str, Tensor], fingerprint: str | None
    ) -> OpenRequest:
        """The opening message."""
        embd, attn, resid = self.dropout
        assert self.dtype != "fp16", "a split does not scale losses; settings were checked"
        return OpenRequest(
            job=job,
            generation=generation,
            session=session,
            step=step,
            fingerprint=fingerprint,
            layers=[self.cuts.body.start, self.cuts.body.stop],
            base_fingerprint=self.base_fingerprint,
            adapter=_adapter_settings(self.adapter),
            optimizer=OptimizerSettings(
                beta1=self.optimizer.beta1,
                beta2=self.optimizer.beta2,
                eps=self.optimizer.eps,
                weight_decay=self.optimizer.weight_decay,
            ),
            dtype=self.dtype,
            seed=self.seed,
            dropout=DropoutSettings(embd=embd, attn=attn, resid=resid),
            arithmetic=dict(self.arithmetic),
            allow_inexact=self.allow_inexact,
            state=state,
        )

    def check(self, info: InfoAnswer, url: str) -> None:
        """Raise ServerMismatchError unless the server can serve this job."""
        layers = [self.cuts.body.start, self.cuts.body.stop]
        if list(info.layers) != layers:
            raise ServerMismatchError(
                f"the body server at {url} holds layers {info.layers[0]}:{info.layers[1]}, this run needs "
                f"{layers[0]}:{layers[1]}",
                f"Start it with --layers {layers[0]}:{layers[1]}, or train with these cuts.",
            )
        if self.base_fingerprint is not None and info.base_fingerprint != self.base_fingerprint:
            raise ServerMismatchError(
                f"the body server at {url} holds other base weights ({info.model}, {info.base_fingerprint[:12]}) "
                f"than this run's ({self.base_fingerprint[:12]})",
                "Serve the same --model (and --init and --seed).",
            )
        if self.dtype not in info.dtypes:
            raise ServerMismatchError(
                f"the body server at {url} computes in {', '.join(info.dtypes)}, this run in {self.dtype}",
                "Choose one of them with --dtype.",
            )
        self._check_arithmetic(info, url)
        if info.version != torso.__version__ and not self.allow_inexact:
            raise ServerMismatchError(
                f"the body server at {url} runs Torso {info.version}, this is {torso.__version__}",
                "Install one version on both sides, or accept other last bits with --allow-inexact.",
            )

    def _check_arithmetic(self, info: InfoAnswer, url: str) -> None:
        theirs = dict(info.arithmetic) | {"dtype": self.dtype}
        differing = differences(dict(self.arithmetic), theirs)
        if differing and not self.allow_inexact:
            raise ServerMismatchError(
                f"the body server at {url} computes otherwise than this client: {'; '.join(differing)}",
                "Make them equal (--threads, torch, device), or accept other last bits with --allow-inexact.",
            )


def _adapter_settings(config: AdapterConfig) -> AdapterSettings:
    return AdapterSettings(
        kind=config.kind,
        lora_rank=config.lora_rank,
        alpha=config.alpha,
        dropout=config.dropout,
        rslora=config.rslora,
        targets=list(config.targets),
        modules=list(config.modules),
    )
