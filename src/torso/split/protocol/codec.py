"""Messages to bytes and back. Tensors travel as safetensors, or inside JSON as base64; nothing is ever unpickled."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any, TypeVar

import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor

from torso.errors import RefusedError
from torso.split.protocol.messages import Message

SAFETENSORS = "application/vnd.safetensors"
JSON = "application/json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int64": torch.int64}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SafetensorError,
    struct.error,
)
"""What reading bytes of any kind can raise."""

AnyMessage = TypeVar("AnyMessage", bound=Message)


def encode(message: Message, media_type: str = SAFETENSORS) -> tuple[bytes, str]:
    """The message's bytes and their content type; a message without tensors is always JSON."""
    tensors = _tensors(message)
    if not tensors:
        return message.model_dump_json().encode(), JSON
    fields = message.model_dump(mode="json", exclude=_tensor_fields(type(message)))
    if media_type == JSON:
        for name in _tensor_fields(type(message)):
            value = getattr(message, name)
            fields[name] = {k: _to_json(t) for k, t in value.items()} if isinstance(value, dict) else _to_json(value)
        return json.dumps(fields).encode(), JSON
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(flat, metadata={"message": json.dumps(fields)}), SAFETENSORS


def decode(cls: type[AnyMessage], data: bytes, content_type: str) -> AnyMessage:
    """The message in some bytes; raises RefusedError (code bad_message) whatever is wrong with them."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == SAFETENSORS:
            return cls(**_from_safetensors(cls, data))
        if kind == JSON:
            return cls(**_from_json(cls, data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _bad(f"{cls.__name__} has a wrong field {where}: {first['msg']}") from None
    except _UNREADABLE as error:
        raise _bad(f"{cls.__name__} cannot be read: {type(error).__name__}: {error}") from None
    raise _bad(f"content type {content_type!r} is not understood, expected {SAFETENSORS} or {JSON}")


def _bad(message: str) -> RefusedError:
    return RefusedError(message[:500], "See docs/protocol.md#message-formats.", "bad_message")


def _tensor_fields(cls: type[Message]) -> set[str]:
    return {name for name, field in cls.model_fields.items() if "Tensor" in str(field.annotation)}


def _tensors(message: Message) -> dict[str, Tensor]:
    """All tensors by the name that they have in a safetensors body: a field's, or field/key."""
    tensors: dict[str, Tensor] = {}
    for name in sorted(_tensor_fields(type(message))):
        value = getattr(message, name)
        tensors |= {f"{name}/{k}": t for k, t in value.items()} if isinstance(value, dict) else {name: value}
    return tensors


def _from_safetensors(cls: type[Message], data: bytes) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    fields: dict[str, Any] = json.loads(header["__metadata__"]["message"])
    return fields | _gather(cls, safetensors.torch.load(data))


def _from_json(cls: type[Message], data: bytes) -> dict[str, Any]:
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    flat: dict[str, Tensor] = {}
    for name in _tensor_fields(cls) & fields.keys():
        value = fields.pop(name)
        single = isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}
        flat |= {name: _tensor(value)} if single else {f"{name}/{k}": _tensor(v) for k, v in value.items()}
    return fields | _gather(cls, flat)


def _gather(cls: type[Message], flat: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors by field: themselves, or dictionaries where the field is one."""
    fields: dict[str, Any] = {}
    for name in _tensor_fields(cls):
        if "dict" in str(cls.model_fields[name].annotation):
            fields[name] = {key[len(name) + 1 :]: t for key, t in flat.items() if key.startswith(f"{name}/")}
        elif name in flat:
            fields[name] = flat[name]
    known = {f"{name}/{key}" for name, value in fields.items() if isinstance(value, dict) for key in value}
    unknown = sorted(flat.keys() - fields.keys() - known)
    wrong = [str(t.dtype) for t in flat.values() if t.dtype not in _NAMES]
    if unknown or wrong:
        raise ValueError(f"unexpected tensors {unknown[:3]} or dtypes {wrong[:3]}")
    return fields


def _to_json(tensor: Tensor) -> dict[str, Any]:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data": base64.b64encode(raw).decode()}


def _tensor(value: Any) -> Tensor:
    dtype, shape = DTYPES[value["dtype"]], [int(n) for n in value["shape"]]
    try:
        raw = bytearray(base64.b64decode(value["data"], validate=True))
    except binascii.Error as error:
        raise ValueError(f"data is not base64: {error}") from None
    # Checked before anything is allocated: an empty text must not become a large tensor of whatever lay in memory.
    if min(shape, default=0) < 0 or len(raw) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes of data for shape {shape} of {value['dtype']}")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)
