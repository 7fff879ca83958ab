"""Base weights in and out of Hugging Face's layout, read by key, so that each party loads its own tensors only.

Names are Hugging Face's without the leading "transformer.". Its Conv1D weights are [in, out] there, [out, in] here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from torso.errors import WeightsError
from torso.model.config import Cuts, GPT2Config
from torso.model.names import expected_shapes, is_conv1d, layer_of
from torso.randomness import scaled_normal

Stage = TypeVar("Stage", bound=nn.Module)
PREFIX = "transformer."


class Tensors(Protocol):
    """A model's tensors, by name."""

    @property
    def config(self) -> GPT2Config:
        """The model's shape."""

    def tensor(self, name: str) -> Tensor:
        """One tensor in module layout; raises WeightsError."""


class WeightSource(Tensors, Protocol):
    """Where base weights come from."""

    def check(self, names: Collection[str]) -> None:
        """Raise WeightsError unless these tensors are here, in the right shapes, with the LM head tied."""

    def fingerprint(self, layers: range | None) -> str:
        """SHA-256 of these blocks' weights, or (None) of embeddings and final norm; hexadecimal."""

    def has(self, layers: range) -> bool:
        """Whether all tensors of these blocks are here."""


class FolderWeights:
    """A folder with config.json and model.safetensors, or several of them with an index."""

    def __init__(self, folder: Path) -> None:
        self.config = GPT2Config.from_json(folder / "config.json")
        self._folder = folder
        self._files = _files_by_key(folder)
        self._keys = {_plain(key): key for key in self._files}
        self._shapes = expected_shapes(self.config)
        unexpected = [n for n in self._keys if n not in self._shapes and not _is_ignored(n)]
        if unexpected:
            raise WeightsError(f"{folder} holds unexpected tensors: {_some(unexpected)}", "Is it a plain GPT-2?")

    def tensor(self, name: str) -> Tensor:
        """See WeightSource."""
        stored = self._stored(name)
        if name == "wte.weight":
            self._check_tied_head()
        self._check_shape(name, stored.shape)
        return stored.t().contiguous() if is_conv1d(name) else stored

    def check(self, names: Collection[str]) -> None:
        """See WeightSource."""
        for name in names:
            self._check_shape(name, self._read(name, lambda file, key: file.get_slice(key).get_shape()))
        if "wte.weight" in names:
            self._check_tied_head()

    def fingerprint(self, layers: range | None) -> str:
        """See WeightSource; of the tensors as they are on disk."""
        digest = hashlib.sha256()
        wanted = (None,) if layers is None else layers
        for name in sorted(n for n in self._shapes if layer_of(n) in wanted):
            stored = self._stored(name)
            digest.update(f"{name} {stored.dtype} {tuple(stored.shape)}\n".encode())
            digest.update(stored.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def has(self, layers: range) -> bool:
        """See WeightSource."""
        return all(name in self._keys for name in self._shapes if layer_of(name) in layers)

    def _check_tied_head(self) -> None:
        """Raise WeightsError when an LM head of its own differs from the embeddings."""
        head = "lm_head.weight"
        if head in self._keys and not torch.equal(self._stored(head), self._stored("wte.weight")):
            raise WeightsError(f"{self._folder} has an LM head that is not tied", "Torso trains plain GPT-2 only.")

    def _check_shape(self, name: str, stored: Sequence[int]) -> None:
        shape = tuple(reversed(stored)) if is_conv1d(name) else tuple(stored)
        if shape != self._shapes[name]:
            found = f"{name} in {self._folder} has shape {shape}"
            raise WeightsError(f"{found}, expected {self._shapes[name]}", "Do config and weights belong together?")

    def _stored(self, name: str) -> Tensor:
        tensor: Tensor = self._read(name, lambda file, key: file.get_tensor(key))
        return tensor

    def _read(self, name: str, what: Callable[[Any, str], Any]) -> Any:
        if name not in self._keys:
            raise WeightsError(f"{self._folder} lacks the tensor {name}", "Is the folder complete?")
        key = self._keys[name]
        try:
            with safe_open(self._files[key], framework="pt") as file:
                return what(file, key)
        except (SafetensorError, OSError) as error:
            raise _unreadable(self._files[key], error) from None


class RandomWeights:
    """GPT-2's random initialisation, a pure function of seed and name, so each party makes its own tensors only."""

    def __init__(self, config: GPT2Config, seed: int) -> None:
        self.config, self._seed = config, seed
        self._shapes = expected_shapes(config)

    def tensor(self, name: str) -> Tensor:
        """See WeightSource."""
        shape = self._shapes[name]
        if name.endswith(".bias"):
            return torch.zeros(shape)
        if ".ln_" in f".{name}":
            return torch.ones(shape)
        deviation = self.config.initializer_range
        if name.endswith("c_proj.weight"):
            deviation /= (2 * self.config.n_layer) ** 0.5
        return scaled_normal(shape, deviation, "initial weights", self._seed, name)

    def check(self, names: Collection[str]) -> None:
        """See WeightSource."""

    def fingerprint(self, layers: range | None) -> str:
        """See WeightSource; of the recipe, for the weights follow from it."""
        blocks = None if layers is None else [layers.start, layers.stop]
        recipe = {"config": self.config.to_json(), "seed": self._seed, "layers": blocks}
        return hashlib.sha256(b"random 1 " + json.dumps(recipe, sort_keys=True).encode()).hexdigest()

    def has(self, layers: range) -> bool:
        """See WeightSource; always."""
        return True


class StateWeights:
    """Weights that are in memory, by name, in module layout: a trained model's."""

    def __init__(self, config: GPT2Config, tensors: Mapping[str, Tensor]) -> None:
        self.config, self._tensors = config, tensors

    def tensor(self, name: str) -> Tensor:
        """See Tensors."""
        if name not in self._tensors:
            raise WeightsError(f"the trained weights lack the tensor {name}", "Is it a run of this model?")
        return self._tensors[name]


def build(
    stage: Callable[[GPT2Config, Cuts], Stage],
    source: Tensors,
    cuts: Cuts,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    config: GPT2Config | None = None,
) -> Stage:
    """A stage with the source's weights, frozen, reading only its own tensors.

    `config` is the source's with other dropouts, say. Raises WeightsError for missing or misshapen tensors.
    """
    with torch.device("meta"):
        module = stage(config or source.config, cuts)
    state = {name: source.tensor(name).to(device=device, dtype=dtype) for name in module.state_dict()}
    module.load_state_dict(state, assign=True)
    return module.requires_grad_(False).eval()


def save_folder(folder: Path, config: GPT2Config, tensors: Mapping[str, Tensor]) -> None:
    """Write a folder in Hugging Face layout from tensors in module layout (wte once, the head stays tied).

    Raises WeightsError unless they are all of a GPT-2 of this shape.
    """
    shapes = expected_shapes(config)
    if tensors.keys() != shapes.keys():
        wrong = tensors.keys() ^ shapes.keys()
        raise WeightsError(f"the tensors to save are not a whole GPT-2: {_some(sorted(wrong))}", "Give all of them.")
    misshapen = [name for name, shape in shapes.items() if tuple(tensors[name].shape) != shape]
    if misshapen:
        raise WeightsError(f"the tensors to save are of another shape: {_some(misshapen)}", "Give the model's own.")
    folder.mkdir(parents=True, exist_ok=True)
    stored = {PREFIX + n: (t.t() if is_conv1d(n) else t).detach().cpu().contiguous() for n, t in tensors.items()}
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    # the library makes its file readable for nobody else
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _files_by_key(folder: Path) -> dict[str, Path]:
    """The file that holds each key."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {key: folder / file for key, file in _weight_map(index).items()}
    path = folder / "model.safetensors"
    if not path.is_file():
        raise WeightsError(f"{folder} has no model.safetensors", "Weights must be safetensors; pickles are not read.")
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _weight_map(index: Path) -> dict[str, str]:
    """Names of the files beside the index, by key."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(index, error) from None
    mapping = content.get("weight_map") if isinstance(content, dict) else None
    files = list(mapping.values()) if isinstance(mapping, dict) else [None]
    if not all(isinstance(file, str) and Path(file).name == file for file in files):
        raise WeightsError(f"{index} has no weight_map from tensors to files beside it", "Fetch it again.")
    return dict(mapping or {})


def _unreadable(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path} cannot be read: {error}", "Fetch it again.")


def _plain(key: str) -> str:
    return key.removeprefix(PREFIX)


def _is_ignored(name: str) -> bool:
    """Causal masks that old files hold as buffers, and the LM head, which is tied."""
    return name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias"))


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
