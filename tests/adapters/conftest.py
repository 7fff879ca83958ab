"""The tiny GPT-2 of the fixtures: as Torso's model, and what peft made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from torso.model.config import Cuts
from torso.model.stages import GPT2
from torso.model.weights import FolderWeights, build


@dataclass(frozen=True)
class Fixtures:
    """What peft wrote, and means to make Torso's side of it."""

    folder: Path
    token_ids: Tensor
    labels: Tensor

    def model(self, dtype: torch.dtype = torch.float32) -> GPT2:
        """The base as Torso's model, frozen."""
        source = FolderWeights(self.folder / "base")
        return build(lambda config, cuts: GPT2(config), source, Cuts.default(source.config.n_layer), dtype)

    def expected(self, name: str) -> dict[str, Tensor]:
        """Tensors of one of the `*_out` files."""
        return load_file(self.folder / f"{name}_out.safetensors")

    def loss(self, logits: Tensor) -> Tensor:
        """The mean loss as transformers defines it."""
        flat, labels = logits[:, :-1].reshape(-1, logits.shape[-1]), self.labels[:, 1:].reshape(-1)
        return nn.functional.cross_entropy(flat.float(), labels)


@pytest.fixture(scope="session")
def peft_fixtures(shared_data: Path) -> Fixtures:
    folder = shared_data / "peft-fixtures"
    batch = load_file(folder / "batch.safetensors")
    return Fixtures(folder, batch["input_ids"], batch["labels"])


@pytest.fixture
def shake() -> Callable[[dict[str, nn.Parameter]], None]:
    """A function that moves adapters away from their initial values."""

    def moved(parameters: dict[str, nn.Parameter]) -> None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in parameters.items():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(1.0 + 0.3 * noise) if name.endswith("magnitude") else parameter.add_(0.1 * noise)

    return moved
