"""What messages can say, and above all what they cannot."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from torch import Tensor

from torso.split.protocol import messages
from torso.split.protocol.messages import (
    AdapterSettings,
    CommitRequest,
    GenerationForwardRequest,
    Identified,
    Message,
    PrepareRequest,
)

MESSAGES = [
    cls for _, cls in inspect.getmembers(messages, inspect.isclass) if issubclass(cls, Message) and cls is not Message
]
TENSOR_FIELDS = {"activations", "activation_grad", "state"}
INTEGER_LISTS = {"lengths", "rows", "layers"}
TEXT_FIELDS = {
    "session", "job", "generation_id", "incarnation", "instance", "fingerprint", "fingerprint_before",
    "base_fingerprint", "arithmetic", "dtype", "dtypes", "kind", "targets", "modules", "version", "model", "host",
    "squared_norms",
}  # fmt: skip
"""Names, hashes and settings; none of them comes from a data set."""
IDENTITY: dict[str, Any] = {"generation": 1, "session": "0123456789abcdef"}
COMMIT: dict[str, Any] = IDENTITY | {
    "divisor": 1.0, "clip_factor": 1.0, "learning_rate": 0.1, "skip": False, "fingerprint_before": "f",
}  # fmt: skip


def leaves(annotation: Any) -> set[Any]:
    """The plain types inside an annotation."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return {str}
    return {leaf for part in inner for leaf in leaves(part)} if inner else {annotation}


def fields(cls: type[Message]) -> list[tuple[str, Any]]:
    return [(name, field.annotation) for name, field in cls.model_fields.items()]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_no_message_can_carry_tokens_labels_or_text(cls: type[Message]) -> None:
    for name, annotation in fields(cls):
        kinds = leaves(annotation)
        assert Any not in kinds
        assert bytes not in kinds
        if Tensor in kinds:
            assert name in TENSOR_FIELDS
        elif str in kinds:
            assert name in TEXT_FIELDS
        elif int in kinds and typing.get_args(annotation) and annotation != int | None:
            assert name in INTEGER_LISTS


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_message_and_nested_one_refuses_unknown_fields(cls: type[Message]) -> None:
    assert cls.model_config["extra"] == "forbid"
    nested = [
        kind for _, a in fields(cls) for kind in leaves(a) if inspect.isclass(kind) and issubclass(kind, BaseModel)
    ]
    assert all(issubclass(kind, Message) for kind in nested)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_message_says_what_it_is_for(cls: type[Message]) -> None:
    assert cls.__doc__
    assert cls.__doc__ != Message.__doc__


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Identified(**IDENTITY).generation = 2  # type: ignore[misc]


@pytest.mark.parametrize("session", ["", "abc", "ABCDEF0123456789", "0" * 65, "0123456\n", "../../../etc"])
def test_a_session_is_hexadecimal(session: str) -> None:
    with pytest.raises(ValidationError):
        Identified(generation=1, session=session)


@pytest.mark.parametrize("num", [0, -1, 1_000_001, 1.5, "many"])
def test_a_step_has_a_sensible_number_of_micro_batches(num: Any) -> None:
    with pytest.raises(ValidationError):
        PrepareRequest(**IDENTITY, num_micro_batches=num)


@pytest.mark.parametrize("divisor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_commit_never_divides_by_zero(divisor: float) -> None:
    with pytest.raises(ValidationError):
        CommitRequest.model_validate(COMMIT | {"divisor": divisor})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["clip_factor", "learning_rate"])
def test_a_commit_cannot_make_everything_not_a_number(name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        CommitRequest.model_validate(COMMIT | {name: value})


def test_an_adapter_is_one_of_two_kinds() -> None:
    with pytest.raises(ValidationError):
        AdapterSettings.model_validate(
            {"kind": "ia3", "lora_rank": 2, "alpha": 1.0, "dropout": 0.0, "rslora": False, "targets": ["attn.c_attn"]}
        )


def test_a_decoding_never_goes_back_before_its_start() -> None:
    with pytest.raises(ValidationError, match="position"):
        GenerationForwardRequest.model_validate({**IDENTITY, "position": -1, "lengths": [1], "rows": None})
