"""Randomness without state: every random number is an integer hash of what it is for.

A mask, a shuffle or an initial weight depends on (seed, step, micro-batch, site or name) and on the element's
number alone, so that recomputing gives the same bits on every device and in every process, and a checkpoint has
no generator state to save. Key schedule and mixing function: SplitMix64's finaliser (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_PIECE = 1 << 15


def hash64(*parts: int | str) -> int:
    """An unsigned 64-bit hash of its parts, the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permutation(count: int, *parts: int | str) -> list[int]:
    """A permutation of range(count) chosen by `parts`."""
    bits = _hash_range(count, hash64(*parts), torch.device("cpu"))
    return [int(i) for i in torch.argsort(bits, stable=True)]


def uniform(shape: Sequence[int], *parts: int | str) -> Tensor:
    """Float64 numbers in [0, 1) on the CPU."""
    count = int(torch.Size(shape).numel())
    return _unit(_hash_range(count, hash64(*parts), torch.device("cpu"))).reshape(tuple(shape))


def normal(shape: Sequence[int], *parts: int | str) -> Tensor:
    """Float64 standard normal numbers on the CPU (Box-Muller)."""
    return _normal(0, int(torch.Size(shape).numel()), *parts).reshape(tuple(shape))


def scaled_normal(shape: Sequence[int], deviation: float, *parts: int | str) -> Tensor:
    """`normal(…) * deviation` as float32, drawn in pieces: little more than the result is ever held."""
    values = torch.empty(tuple(shape))
    for number, piece in enumerate(torch.split(values.view(-1), _PIECE)):
        piece.copy_(_normal(number * _PIECE, len(piece), *parts) * deviation)
    return values


def _normal(start: int, count: int, *parts: int | str) -> Tensor:
    """Elements [start, start + count) of a long row of normal numbers."""
    radius, angle = (
        _unit(_hash_range(count, hash64(name, *parts), torch.device("cpu"), start)) for name in ("radius", "angle")
    )
    return torch.sqrt(-2.0 * torch.log1p(-radius)) * torch.cos(2.0 * torch.pi * angle)


@dataclass(frozen=True)
class DropoutKey:
    """What a dropout mask is drawn for, beside the site and the element."""

    seed: int
    step: int
    micro_batch: int


_scope: contextvars.ContextVar[DropoutKey | None] = contextvars.ContextVar("dropout_scope", default=None)


@contextlib.contextmanager
def dropout_scope(key: DropoutKey | None) -> Iterator[None]:
    """Dropout inside draws its masks for `key`; with None, or outside any scope, nothing is dropped."""
    token = _scope.set(key)
    try:
        yield
    finally:
        _scope.reset(token)


def dropout_active() -> bool:
    """Whether a scope with a key surrounds the caller."""
    return _scope.get() is not None


def dropout_key() -> DropoutKey | None:
    """The key of the scope around the caller."""
    return _scope.get()


def dropout(x: Tensor, p: float, site: str) -> Tensor:
    """`x` with a share `p` of its elements zeroed and the rest scaled by 1 / (1 - p); `x` itself when inactive."""
    mask = None if p == 0.0 else dropout_mask(x, p, site)
    return x if mask is None else x * mask


def dropout_mask(x: Tensor, p: float, site: str) -> Tensor | None:
    """The factors (0 or 1 / (1 - p), x's shape and dtype) of the present scope; None when nothing is dropped."""
    key = _scope.get()
    if key is None or p == 0.0:
        return None
    seed = hash64("dropout", key.seed, key.step, key.micro_batch, site)
    keep = _unit(_hash_range(x.numel(), seed, x.device)) >= p
    return (keep.to(x.dtype) / (1.0 - p)).reshape(x.shape)


def keep_out_of_compiled_code() -> None:
    """Masks are made outside of what torch.compile makes: it would take step and micro-batch for constants."""
    global dropout_mask
    dropout_mask = torch.compiler.disable(dropout_mask)  # type: ignore[no-untyped-call]


def _unit(bits: Tensor) -> Tensor:
    """Int64 hash bits to float64 in [0, 1): the upper 53 bits."""
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def _hash_range(count: int, seed: int, device: torch.device, start: int = 0) -> Tensor:
    """Hash bits [count] int64 of the counters start, … under `seed`; int64 products wrap on every device."""
    z = torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN) + _signed(seed)
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """A logical right shift of int64 (torch's is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >= 1 << 63 else value
