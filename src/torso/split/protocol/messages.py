"""Every message of `/v1`. None can carry token ids, labels or text.

Shapes: B sequences, T tokens, C width. `lengths` [B] are tokens without padding; they are all that a server learns
of a micro-batch beside its activations.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints
from torch import Tensor


class Message(BaseModel):
    """Base: unknown fields are errors, and numbers that are not finite survive JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, ser_json_inf_nan="constants")


class Identified(Message):
    """What every request of a job carries beside the job (and step) in its path."""

    generation: int = Field(ge=1)
    """Raised by the client before every opening; a lower one is stale."""
    session: str = Field(pattern=r"^[0-9a-f]{8,64}$")
    """Random identity of one opening."""


class Answer(Message):
    """Base of all answers."""

    incarnation: str
    """Random identity of the server process; when it changes, state was lost."""


class AdapterSettings(Message):
    """As torso.adapters.config."""

    kind: Literal["lora", "dora"]
    lora_rank: int = Field(ge=1, le=65536)
    alpha: FiniteFloat
    dropout: FiniteFloat
    rslora: bool
    targets: list[str]
    modules: list[Annotated[str, StringConstraints(pattern=r"^h\.\d+\.[a-z_.]{1,16}=\d{1,6}:[0-9.e+-]{1,24}$")]] = []
    """Where ranks differ: exactly these layers, each `h.2.attn.c_attn=RANK:ALPHA`."""


class OptimizerSettings(Message):
    """AdamW's, as torso.training.config."""

    beta1: FiniteFloat
    beta2: FiniteFloat
    eps: FiniteFloat
    weight_decay: FiniteFloat


class DropoutSettings(Message):
    """GPT-2's own dropouts."""

    embd: FiniteFloat
    attn: FiniteFloat
    resid: FiniteFloat


class OpenRequest(Identified):
    """Open a job, or open it again; an empty state means step 0, initialised by seed."""

    job: str = Field(pattern=r"^[0-9a-f]{16,64}$")
    step: int = Field(ge=0)
    fingerprint: str | None
    """Of the state to seed from; None at step 0."""
    layers: list[int] = Field(min_length=2, max_length=2)
    base_fingerprint: str | None
    adapter: AdapterSettings
    optimizer: OptimizerSettings
    dtype: Literal["fp32", "bf16"]
    seed: int
    dropout: DropoutSettings
    arithmetic: dict[str, str]
    allow_inexact: bool
    state: dict[str, Tensor]


class OpenAnswer(Answer):
    """Where the job stands now."""

    job: str
    step: int
    fingerprint: str
    seeded: bool
    """False when the server stood there already."""


class JobAnswer(Answer):
    """The step that a job is at."""

    step: int
    fingerprint: str


class ForwardRequest(Identified):
    """Activations [B, T, C] at the body's input."""

    lengths: list[int]
    activations: Tensor


class ForwardAnswer(Answer):
    """Activations [B, T, C] at its output."""

    activations: Tensor


class BackwardRequest(Identified):
    """The loss's gradient [B, T, C] at the body's output."""

    activation_grad: Tensor


class BackwardAnswer(Answer):
    """The same at its input."""

    activation_grad: Tensor


class PrepareRequest(Identified):
    """Combine the gradients of micro-batches 0 … num_micro_batches - 1."""

    num_micro_batches: int = Field(ge=1, le=1_000_000)


class PrepareAnswer(Answer):
    """Squared norm of each parameter's summed gradient, in float64."""

    squared_norms: dict[str, float]
    finite: bool


class CommitRequest(Identified):
    """Make the update of the step."""

    divisor: float = Field(gt=0.0, allow_inf_nan=False)
    clip_factor: float = Field(ge=0.0, allow_inf_nan=False)
    learning_rate: FiniteFloat
    skip: bool
    fingerprint_before: str


class CommitAnswer(Answer):
    """The state after the update."""

    step: int
    fingerprint: str
    memory_bytes: int
    """Largest memory of a worker so far."""


class StateAnswer(Answer):
    """The body's adapter and optimizer."""

    step: int
    fingerprint: str
    state: dict[str, Tensor]


class InferenceRequest(Identified):
    """Activations [B, T, C] through the body without dropout; nothing is kept."""

    lengths: list[int]
    activations: Tensor


class InferenceAnswer(Answer):
    """Activations [B, T, C]."""

    activations: Tensor


class GenerationOpenRequest(Identified):
    """A key-value cache for `batch` sequences."""

    generation_id: str = Field(pattern=r"^[0-9a-f]{8,64}$")
    batch: int = Field(ge=1, le=65536)


class GenerationForwardRequest(Identified):
    """The next chunk of columns; row b fills the first `lengths[b]` of them."""

    position: int = Field(ge=0)
    """Columns so far; makes a repeated request harmless."""
    lengths: list[int]
    rows: list[int] | None
    """Rows of the cached batch to go on with, in this order; None keeps all."""
    activations: Tensor


class Acknowledgement(Answer):
    """Done."""


class WorkerAddress(Message):
    """Where one worker of the group listens."""

    rank: int
    host: str | None
    """None: the host under which the client reached the server."""
    port: int


class Limits(Message):
    """What a request may not exceed."""

    max_body_bytes: int
    max_tokens: int
    max_micro_batches: int
    """Of one step of a job."""
    max_decodings: int
    """Of a job at once."""


class InfoAnswer(Answer):
    """What a server is."""

    version: str
    instance: str
    """Random identity of the launch that all workers of the group belong to."""
    model: str
    n_layer: int
    n_embd: int
    n_positions: int
    layers: list[int]
    base_fingerprint: str
    arithmetic: dict[str, str]
    dtypes: list[str]
    limits: Limits
    workers: list[WorkerAddress]
    load: int
    """Requests under way or waiting at this worker."""
