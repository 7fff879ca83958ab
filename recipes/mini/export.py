"""Write `mini` as a Hugging Face GPT-2 folder in bf16."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from torso.model.config import GPT2Config
from torso.model.weights import save_folder


def export(tensors: Mapping[str, Tensor], config: GPT2Config, source: Path, target: Path) -> None:
    """`tensors` by module name to `target`, with tokenizer and manifest from the recipe's folder `source`.

    Every file appears whole: it is written beside the folder first.
    """
    target.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    save_folder(partial, config, {name: value.to(torch.bfloat16) for name, value in tensors.items()})
    for path in (source / "model" / "tokenizer.json", source / "SOURCES.md"):
        shutil.copyfile(path, partial / path.name)
    for path in partial.iterdir():
        path.chmod(0o644)
        os.replace(path, target / path.name)
    partial.rmdir()
