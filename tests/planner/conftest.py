from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from torso.adapters.config import AdapterConfig
from torso.model.config import SIZES, Cuts
from torso.planner.hardware import CPU, Link
from torso.planner.setting import Setting


def make(**changes: object) -> Setting:
    """GPT-2 small with LoRA on two devices, changed."""
    shape = changes.pop("shape", SIZES["gpt2"])
    fields: dict[str, object] = {
        "shape": shape,
        "adapter": AdapterConfig(),
        "cuts": Cuts.default(shape.n_layer),  # type: ignore[attr-defined]
        "global_batch_size": 16,
        "micro_batch_size": 4,
        "tokens": 128,
        "devices": 2,
        "device": CPU,
        "link": Link(name="loopback", bytes_per_second=math.nan),
    }
    return Setting(**fields | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def setting() -> Callable[..., Setting]:
    """Makes settings."""
    return make
