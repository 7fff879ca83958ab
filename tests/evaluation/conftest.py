"""Outputs with official values, and the tiny GPT-2 of the fixtures as Torso and as transformers load it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from torso.data.corpus import Corpus
from torso.data.sources import load
from torso.evaluation.model import CachedModel, LocalMiddle
from torso.model.config import Cuts
from torso.model.stages import Body, Head, Tail
from torso.model.weights import FolderWeights, WeightSource, build


@dataclass(frozen=True)
class Scored:
    """Outputs, their references, and what the official scorer and Hugging Face's definitions give."""

    outputs: list[str]
    references: list[tuple[str, ...]]
    official: dict[str, Any]
    hf: dict[str, Any]


@pytest.fixture(scope="session")
def e2e(shared_data: Path) -> Corpus:
    """The official data set."""
    return load(f"e2e:{shared_data / 'e2e' / 'e2e-dataset.zip'}")


@pytest.fixture(scope="session")
def ten(shared_data: Path) -> Scored:
    """The ten instances that come with the official scorer."""
    folder = shared_data / "e2e-metrics"
    groups = (folder / "devel-conc.txt").read_text(encoding="utf-8").strip().split("\n\n")
    return scored(folder, "baseline-output.txt", "example_inputs", [tuple(group.splitlines()) for group in groups])


@pytest.fixture(scope="session")
def tgen(shared_data: Path, e2e: Corpus) -> Scored:
    """TGen's outputs on the whole test set."""
    references = [group.references for group in e2e.split("test")]
    return scored(shared_data / "e2e-metrics", "tgen-std.run0.txt", "tgen-std.run0", references)


def scored(folder: Path, outputs: str, values: str, references: list[tuple[str, ...]]) -> Scored:
    texts = (folder / outputs).read_text(encoding="utf-8").splitlines()
    official = json.loads((folder / f"{values}.json").read_text())
    assert (len(texts), sum(map(len, references))) == (official["corpus"]["n"], official["corpus"]["refs"])
    return Scored(texts, references, official, json.loads((folder / f"hf_{values}.json").read_text()))


def cached_model(source: WeightSource, cuts: Cuts) -> CachedModel:
    """Head, middle and tail at home."""
    body = LocalMiddle(build(Body, source, cuts), cuts)
    return CachedModel(build(Head, source, cuts), body, build(Tail, source, cuts), cuts, torch.device("cpu"))


@pytest.fixture(scope="session")
def model(shared_data: Path) -> CachedModel:
    """2 layers, width 32, 97 tokens, 64 positions, cut after the first block and with an empty body."""
    return cached_model(FolderWeights(shared_data / "peft-fixtures" / "base"), Cuts(1, 1, 2))


@pytest.fixture(scope="session")
def reference(shared_data: Path) -> Any:
    """The same as transformers understands it."""
    transformers = pytest.importorskip("transformers")
    folder = shared_data / "peft-fixtures" / "base"
    return transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
