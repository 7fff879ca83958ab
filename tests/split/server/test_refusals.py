"""Bad requests: a problem document with a 4xx status that says not to retry, and a server that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.split.harness import CONFIG, Servers, serving
from tests.split.wire import JSON, Wire, tensor
from torch import Tensor

from torso.errors import RefusedError, ServerError, StateLostError
from torso.split.protocol.codec import SAFETENSORS, encode
from torso.split.protocol.messages import AdapterSettings, DropoutSettings, ForwardRequest, OptimizerSettings

GARBAGE = [b"", b"\0" * 100, b"{", b"[]", b"\xff" * 9, b'{"generation": 1}']
WRONG_PATHS = ["steps/x/prepare", "steps/-1/commit", "steps/1.5/prepare", "steps/99999999999999999999999/commit"]
WRONG_NUMBERS = ["-1", "x", "1.5", "9" * 30, "%00", "٣"]


@pytest.fixture
def opened(wire: Wire) -> Wire:
    wire.open()
    return wire


@pytest.fixture(scope="module")
def small(base: Path) -> Iterator[Servers]:
    """A server that takes little."""
    with serving(base, 1, max_body_bytes=20_000, max_tokens=20) as servers:
        yield servers


def raw(text: str) -> dict[str, Any]:
    return {"content": text, "headers": {"content-type": JSON}}


@pytest.mark.parametrize("kind", [SAFETENSORS, JSON, "text/html", ""])
@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("rest", ["/steps/1/microbatches/0/forward", "/steps/1/prepare", "/inference", "/generations"])
def test_garbage_is_answered_with_a_problem(opened: Wire, rest: str, body: bytes, kind: str) -> None:
    problem = opened.problem("POST", opened.path(rest), content=body, headers={"content-type": kind})
    assert (problem.status, problem.code, problem.retry) == (400, "bad_message", "never")


@pytest.mark.parametrize("rest", WRONG_PATHS)
def test_steps_that_are_no_numbers_are_refused(opened: Wire, rest: str) -> None:
    problem = opened.problem("POST", opened.path(f"/{rest}"), **raw("{}"))
    assert (problem.status, problem.retry) == (400, "never")


@pytest.mark.parametrize("number", WRONG_NUMBERS)
def test_micro_batches_that_are_no_numbers_are_refused(opened: Wire, number: str) -> None:
    problem = opened.problem("POST", opened.path(f"/steps/1/microbatches/{number}/forward"), **raw("{}"))
    assert (problem.status, problem.retry) == (400, "never")


@pytest.mark.parametrize(
    "query", ["", "?step=0", "?step=x&generation=1&session=feed", "?step=0&generation=1&session=Z"]
)
def test_a_wrong_query_is_refused(opened: Wire, query: str) -> None:
    problem = opened.problem("GET", opened.path(f"/state{query}"))
    assert (problem.status, problem.code, problem.retry) == (400, "bad_message", "never")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/v1/nothing"), ("PUT", "/v1/jobs"), ("POST", "/v1/info")]
)
def test_what_is_not_there_is_answered_with_a_problem(wire: Wire, method: str, path: str) -> None:
    problem = wire.problem(method, wire.urls[0] + path)
    assert (problem.status, problem.code, problem.retry) == (404, "not_found", "never")


@pytest.mark.parametrize("secret", ["", "guess", "schlüssel"])
def test_the_groups_own_endpoints_want_its_secret(opened: Wire, secret: str) -> None:
    headers = {"x-torso-secret": secret.encode(), "x-torso-parameters": json.dumps({"job": opened.job})}
    problem = opened.problem("POST", f"{opened.urls[0]}/v1/group/delete", headers=headers)
    assert (problem.status, problem.code) == (403, "forbidden")
    assert opened.status().step == 0


WRONG_TENSORS: list[Tensor] = [
    torch.zeros(2, 5),
    torch.zeros(2, 5, CONFIG.n_embd + 1),
    torch.zeros(2, 0, CONFIG.n_embd),
    torch.zeros(3, 5, CONFIG.n_embd),
    torch.zeros(2, 4, CONFIG.n_embd),
    torch.zeros(2, 5, CONFIG.n_embd, dtype=torch.bfloat16),
    torch.zeros(2, 5, CONFIG.n_embd, dtype=torch.int64),
]


@pytest.mark.parametrize("x", WRONG_TENSORS, ids=lambda x: f"{list(x.shape)} {x.dtype}")
def test_activations_of_a_wrong_shape_or_dtype_are_refused(opened: Wire, x: Tensor) -> None:
    with pytest.raises(RefusedError) as caught:
        opened.forward(1, 0, x=x)
    assert caught.value.code == "wrong_shape"


@pytest.mark.parametrize("shape", [(2, 4, CONFIG.n_embd), (1, 5, CONFIG.n_embd), (2, 5, CONFIG.n_embd - 1)])
def test_a_gradient_that_does_not_fit_its_forward_is_refused_and_harms_nothing(
    opened: Wire, shape: tuple[int, ...]
) -> None:
    opened.forward(1, 0)
    with pytest.raises(RefusedError) as caught:
        opened.backward(1, 0, gradient=torch.zeros(shape))
    assert caught.value.code == "wrong_shape"
    opened.backward(1, 0)
    opened.prepare(1, 1)


def test_a_sequence_longer_than_the_model_is_refused_for_good(opened: Wire) -> None:
    message = ForwardRequest(**opened.identity, lengths=[1], activations=torch.zeros(1, 33, CONFIG.n_embd))
    body, kind = encode(message)
    url = opened.path("/steps/1/microbatches/0/forward")
    problem = opened.problem("POST", url, content=body, headers={"content-type": kind})
    assert (problem.status, problem.code, problem.retry) == (422, "too_long", "never")
    assert "32 positions" in problem.detail


def test_too_many_tokens_are_refused(small: Servers, speak: Callable[..., Wire]) -> None:
    wire = speak(small)
    wire.open()
    wire.forward(1, 0)
    with pytest.raises(RefusedError, match="at most 20") as caught:
        wire.call("POST", wire.path("/steps/1/microbatches/1/forward"), ForwardRequest, five_rows(wire))
    assert caught.value.code == "too_large"


def five_rows(wire: Wire) -> ForwardRequest:
    return ForwardRequest(**wire.identity, lengths=[5] * 5, activations=torch.zeros(5, 5, CONFIG.n_embd))


def test_too_large_a_body_is_refused_while_it_arrives(small: Servers, speak: Callable[..., Wire]) -> None:
    wire = speak(small)
    wire.open()
    problem = wire.problem("POST", wire.path("/inference"), content=b"\0" * 20_001)
    assert (problem.status, problem.code, problem.retry) == (413, "too_large", "never")
    wire.forward(1, 0)


def test_a_very_large_body_is_not_taken_for_a_lost_connection(small: Servers, speak: Callable[..., Wire]) -> None:
    wire = speak(small)
    with pytest.raises(RefusedError) as caught:
        wire.forward(1, 0, x=torch.zeros(200, 32, 4096))
    assert caught.value.code == "too_large"


def adapter(**changes: Any) -> AdapterSettings:
    fields: dict[str, Any] = {
        "kind": "dora", "lora_rank": 2, "alpha": 4.0, "dropout": 0.0, "rslora": False, "targets": ["attn.c_attn"],
    }  # fmt: skip
    return AdapterSettings(**fields | changes)


def optimizer(**changes: float) -> OptimizerSettings:
    return OptimizerSettings(**{"beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0} | changes)


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("layers_mismatch", {"layers": [1, 2]}),
    ("base_mismatch", {"base_fingerprint": "0" * 64}),
    ("adapter_unsupported", {"adapter": adapter(targets=["mlp.nothing"])}),
    ("adapter_unsupported", {"adapter": adapter(targets=[])}),
    ("adapter_unsupported", {"adapter": adapter(alpha=-1.0)}),
    ("adapter_unsupported", {"adapter": adapter(dropout=1.0)}),
    ("arithmetic_mismatch", {"dtype": "bf16"}),
    ("arithmetic_mismatch", {"arithmetic": {"torch": "0.4"}}),
    ("bad_message", {"optimizer": optimizer(beta1=1.5)}),
    ("bad_message", {"dropout": DropoutSettings(embd=0.0, attn=1.5, resid=0.0)}),
    ("bad_message", {"state": {"adapter:other": torch.zeros(1)}}),
]


@pytest.mark.parametrize(("code", "changes"), OTHERS, ids=lambda value: str(value)[:40])
def test_a_job_that_does_not_fit_is_refused_for_good(wire: Wire, code: str, changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as caught:
        wire.open(**changes)
    assert caught.value.code == code
    with pytest.raises(StateLostError):
        wire.status()


@pytest.mark.parametrize("dtype", ["fp16", "int8", ""])
def test_a_dtype_that_nobody_computes_in_is_refused(wire: Wire, dtype: str) -> None:
    with pytest.raises(RefusedError, match="dtype"):
        wire.open(dtype=dtype)


def test_other_last_bits_are_taken_when_they_were_allowed(wire: Wire) -> None:
    assert wire.open(arithmetic={"torch": "0.4"}, allow_inexact=True).seeded


def test_the_state_of_another_adapter_is_refused(wire: Wire) -> None:
    wire.open()
    state = wire.state(0).state
    with pytest.raises(RefusedError) as caught:
        wire.like(generation=2).open(state=state, adapter=adapter(lora_rank=3))
    assert caught.value.code == "bad_message"
    assert wire.step(1)


def test_a_refused_opening_leaves_the_job_as_it_was(pair_wire: Wire) -> None:
    pair_wire.open()
    before = pair_wire.step(1)
    with pytest.raises(RefusedError):
        pair_wire.like(generation=2).open(layers=[0, 4])
    assert pair_wire.status().fingerprint == before
    pair_wire.step(2)


def test_a_server_goes_on_after_every_kind_of_bad_request(opened: Wire, server: Servers) -> None:
    for body in GARBAGE:
        opened.client.post(opened.path("/steps/1/microbatches/0/forward"), content=body)
    with pytest.raises(ServerError):
        opened.forward(1, 0, x=tensor(1, 0)[:, :, :3])
    opened.step(1)
    assert opened.client.get(f"{server.url}/healthz").json()["status"] == "alive"
