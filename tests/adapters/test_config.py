from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from torso.adapters.config import AdapterConfig
from torso.errors import AdapterError


def test_scaling_divides_by_the_rank_or_its_root() -> None:
    assert AdapterConfig(lora_rank=16, alpha=32.0).scaling == 2.0
    assert AdapterConfig(lora_rank=16, alpha=32.0, rslora=True).scaling == 32.0 / math.sqrt(16)


def test_targets_are_canonical_whatever_their_order_and_spelling() -> None:
    config = AdapterConfig(targets=("c_fc", "c_attn", "c_proj"))
    assert config.targets == ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert AdapterConfig(targets=("all",)) == config
    assert AdapterConfig(targets=("mlp.c_proj", "c_attn")).targets == ("attn.c_attn", "mlp.c_proj")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "ia3"}, "'ia3'"),
        ({"lora_rank": 0}, "lora_rank is 0"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"targets": ("lm_head",)}, "'lm_head'"),
        ({"targets": ()}, "no target"),
    ],
)
def test_bad_settings_are_refused_with_their_value(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(AdapterError, match=named):
        AdapterConfig(**fields)


def test_settings_need_no_torch() -> None:
    code = "import sys, torso.adapters.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
