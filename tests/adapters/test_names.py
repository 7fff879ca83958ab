from __future__ import annotations

import random

from torso.adapters.names import parameter_order


def test_order_is_the_models_whatever_order_the_names_come_in() -> None:
    expected = ["wte.weight", "wpe.weight"]
    for layer in (0, 2, 10):
        expected += [f"h.{layer}.ln_1.weight", f"h.{layer}.ln_1.bias"]
        for module in ("attn.c_attn", "attn.c_proj"):
            expected += [f"h.{layer}.{module}.{leaf}" for leaf in ("weight", "bias", "lora_A", "lora_B", "magnitude")]
        expected += [f"h.{layer}.ln_2.weight"]
        for module in ("mlp.c_fc", "mlp.c_proj"):
            expected += [f"h.{layer}.{module}.{leaf}" for leaf in ("lora_A", "lora_B", "magnitude")]
    expected += ["ln_f.weight", "ln_f.bias"]
    shuffled = random.Random(0).sample(expected, len(expected))
    assert parameter_order(shuffled) == expected


def test_a_partys_order_is_the_whole_order_restricted_to_its_names() -> None:
    names = [f"h.{layer}.mlp.{module}.lora_A" for layer in range(12) for module in ("c_proj", "c_fc")]
    body = [name for name in names if int(name.split(".")[1]) in range(2, 11)]
    assert parameter_order(body) == [name for name in parameter_order(names) if name in body]
