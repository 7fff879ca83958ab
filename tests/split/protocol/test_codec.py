from __future__ import annotations

import base64
import json
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from torso.errors import RefusedError
from torso.split.protocol.codec import DTYPES, JSON, SAFETENSORS, decode, encode
from torso.split.protocol.messages import (
    CommitAnswer,
    ForwardRequest,
    PrepareAnswer,
    StateAnswer,
)

IDENTITY = {"generation": 1, "session": "0123456789abcdef"}
DTYPE_NAMES = sorted(DTYPES)


def sample(dtype: torch.dtype, shape: tuple[int, ...] = (2, 3, 4)) -> Tensor:
    values = torch.arange(-3, torch.Size(shape).numel() - 3).reshape(shape)
    return values.to(dtype) if dtype == torch.int64 else (values / 7).to(dtype)


def forward(activations: Tensor | None = None) -> ForwardRequest:
    tensor = sample(torch.float32) if activations is None else activations
    return ForwardRequest(**IDENTITY, lengths=[3, 2], activations=tensor)


def same_bits(a: Tensor, b: Tensor) -> bool:
    bytes_of = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bytes_of)


def safetensors_body(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def json_body(**changes: Any) -> bytes:
    fields = json.loads(encode(forward(), JSON)[0])
    return json.dumps(fields | changes).encode()


def refusal(data: bytes, kind: str) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decode(ForwardRequest, data, kind)
    assert caught.value.code == "bad_message"
    assert "docs/protocol.md" in caught.value.remedy
    assert len(caught.value.message) <= 500
    return caught.value


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_tensors_of_every_dtype_arrive_bit_for_bit(media_type: str, dtype: str) -> None:
    sent = sample(DTYPES[dtype])
    data, kind = encode(forward(sent), media_type)
    received = decode(ForwardRequest, data, kind)
    assert kind == media_type
    assert same_bits(received.activations, sent)
    assert received.lengths == [3, 2]


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_dictionaries_of_tensors_arrive_with_their_names(media_type: str, dtype: str) -> None:
    state = {"adapter:h.1.attn.c_attn.lora_A": sample(DTYPES[dtype]), "a/b": sample(torch.int64, (1,))}
    answer = StateAnswer(incarnation="x", step=3, fingerprint="f", state=state)
    received = decode(StateAnswer, *encode(answer, media_type)).state
    assert received.keys() == state.keys()
    assert all(same_bits(received[name], state[name]) for name in state)


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_numbers_that_are_not_finite_and_negative_zero_survive(media_type: str, dtype: str) -> None:
    special = [float("nan"), float("inf"), float("-inf"), -0.0]
    sent = torch.tensor(special, dtype=DTYPES[dtype]).reshape(1, 2, 2)
    assert same_bits(decode(ForwardRequest, *encode(forward(sent), media_type)).activations, sent)


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
def test_an_empty_dictionary_of_tensors_stays_empty(media_type: str) -> None:
    answer = StateAnswer(incarnation="x", step=0, fingerprint="f", state={})
    assert decode(StateAnswer, *encode(answer, media_type)).state == {}


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
def test_views_and_tensors_that_need_gradients_are_sent_by_value(media_type: str) -> None:
    whole = sample(torch.float32, (2, 4, 3)).requires_grad_()
    view = whole.transpose(1, 2)
    received = decode(ForwardRequest, *encode(forward(view), media_type)).activations
    assert same_bits(received, view.detach())
    assert not received.requires_grad


def test_a_message_without_tensors_is_json_whatever_was_asked() -> None:
    answer = CommitAnswer(incarnation="x", step=1, fingerprint="f", memory_bytes=1 << 40)
    data, kind = encode(answer, SAFETENSORS)
    assert kind == JSON
    assert decode(CommitAnswer, data, kind) == answer


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.1e300, 5e-324, 0.1])
def test_norms_survive_json_exactly(value: float) -> None:
    answer = PrepareAnswer(incarnation="x", squared_norms={"a": value}, finite=value < float("inf"))
    received = decode(PrepareAnswer, *encode(answer)).squared_norms["a"]
    assert struct.pack("<d", received) == struct.pack("<d", value)


def test_content_types_may_have_parameters_and_capitals() -> None:
    data, _ = encode(forward(), JSON)
    assert decode(ForwardRequest, data, "Application/JSON; charset=utf-8").lengths == [3, 2]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/octet-stream", "application/x-pickle"])
def test_other_content_types_are_refused(kind: str) -> None:
    assert "content type" in refusal(encode(forward())[0], kind).message


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
def test_a_message_cut_off_anywhere_is_refused(media_type: str) -> None:
    data, kind = encode(forward(), media_type)
    for size in range(0, len(data), 3):
        refusal(data[:size], kind)


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\xff" * 64, b"[]", b"null", b"7", b'"text"', b"{", b"[" * 100_000])
def test_garbage_is_refused(data: bytes, media_type: str) -> None:
    refusal(data, media_type)


HEADERS: list[Any] = [
    b"\xff\xfe",
    [],
    {},
    {"__metadata__": 5},
    {"__metadata__": {"message": "["}},
    {"__metadata__": {"message": "[]"}},
    {"__metadata__": {"message": "{}"}, "activations": {"dtype": "F32", "shape": [2, 3, 4], "data_offsets": [0, 96]}},
    {"__metadata__": {"message": "{}"}, "activations": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
    {"__metadata__": {"message": "{}"}, "activations": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}},
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_wrong_safetensors_headers_are_refused(header: Any) -> None:
    refusal(safetensors_body(header, bytes(16)), SAFETENSORS)


@pytest.mark.parametrize("size", [0, 1, 1 << 31, 1 << 32, (1 << 64) - 1])
def test_a_header_length_that_lies_is_refused(size: int) -> None:
    data, kind = encode(forward())
    refusal(struct.pack("<Q", size) + data[8:], kind)


TENSORS: list[Any] = [
    None,
    5,
    "text",
    [1, 2],
    {},
    {"dtype": "float32", "shape": [1]},
    {"dtype": "float64", "shape": [1], "data": "AAAAAAAAAAA="},
    {"dtype": "object", "shape": [1], "data": "AAAA"},
    {"dtype": ["float32"], "shape": [1], "data": "AAAAAA=="},
    {"dtype": "float32", "shape": None, "data": "AAAAAA=="},
    {"dtype": "float32", "shape": [2], "data": "AAAAAA=="},
    {"dtype": "float32", "shape": [-1], "data": "AAAAAA=="},
    {"dtype": "float32", "shape": [float("inf")], "data": "AAAAAA=="},
    {"dtype": "float32", "shape": [1], "data": "not base64!"},
    {"dtype": "float32", "shape": [1], "data": 5},
    {"dtype": "float32", "shape": [1, 1, 1], "data": ""},
    {"dtype": "float32", "shape": [1 << 62, 4, 4], "data": ""},
]


@pytest.mark.parametrize("tensor", TENSORS, ids=range(len(TENSORS)))
def test_wrong_tensors_in_json_are_refused(tensor: Any) -> None:
    refusal(json_body(activations=tensor), JSON)


@pytest.mark.parametrize(
    "changes",
    [{"extra": 1}, {"lengths": "ab"}, {"lengths": [1.5]}, {"generation": 0}, {"generation": None}, {"session": "UP"}],
    ids=str,
)
def test_wrong_and_unknown_fields_are_refused_by_name(changes: dict[str, Any]) -> None:
    assert next(iter(changes)) in refusal(json_body(**changes), JSON).message


@pytest.mark.parametrize("name", ["token_ids", "activations/0", "labels", "text"])
def test_tensors_that_the_message_does_not_have_are_refused(name: str) -> None:
    fields = json.dumps({**IDENTITY, "lengths": [3, 2]})
    tensors = {"activations": sample(torch.float32), name: sample(torch.int64)}
    refusal(safetensors.torch.save(tensors, metadata={"message": fields}), SAFETENSORS)


def test_dtypes_that_are_not_offered_are_refused() -> None:
    fields = json.dumps({**IDENTITY, "lengths": [3, 2]})
    tensors = {"activations": torch.zeros(2, 3, 4, dtype=torch.float64)}
    error = refusal(safetensors.torch.save(tensors, metadata={"message": fields}), SAFETENSORS)
    assert "float64" in error.message


class Bomb:
    """Goes off when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return _go_off, ("boom",)


def _go_off(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize("media_type", [SAFETENSORS, JSON])
def test_nothing_is_ever_unpickled(media_type: str) -> None:
    bomb = pickle.dumps(Bomb())
    refusal(bomb, media_type)
    refusal(json_body(activations={"dtype": "float32", "shape": [1], "data": base64.b64encode(bomb).decode()}), JSON)
    refusal(safetensors_body(bomb), SAFETENSORS)
