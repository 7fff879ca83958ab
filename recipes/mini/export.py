"""Write `mini` as a Hugging Face GPT-2 folder in bf16."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def config(sizes: Mapping[str, int]) -> dict[str, object]:
    """config.json of a GPT-2 without dropout whose end token is the last of the vocabulary."""
    end = sizes["vocab_size"] - 1
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **sizes,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def export(tensors: Mapping[str, Tensor], sizes: Mapping[str, int], source: Path, target: Path) -> None:
    """`tensors` by module name ([out, in]) to `target`, with the tokenizer and manifest from `source`."""
    target.mkdir(parents=True, exist_ok=True)
    stored = {}
    for name, value in tensors.items():
        laid_out = value.t() if name.endswith(TRANSPOSED) else value
        stored[f"transformer.{name}"] = laid_out.to(torch.bfloat16).contiguous()
    partial = target / "model.safetensors.partial"
    save_file(stored, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config(sizes), indent=2) + "\n", encoding="utf-8")
    for path in (source / "model" / "tokenizer.json", source / "SOURCES.md"):
        shutil.copyfile(path, target / path.name)
