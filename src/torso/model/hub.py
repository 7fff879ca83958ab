"""From what people type after --model to weights and tokenizer files."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torso.errors import WeightsError
from torso.model.config import SIZES, GPT2Config

if TYPE_CHECKING:
    from torso.model.weights import FolderWeights, RandomWeights

Init = Literal["pretrained", "random"]
WEIGHT_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")
_SHA256 = re.compile("[0-9a-f]{64}")


def open_source(model: str, init: Init = "pretrained", seed: int = 0) -> FolderWeights | RandomWeights:
    """Weights of `model`: "mini", a published size, or a folder. Raises WeightsError."""
    # here, because finding a tokenizer needs no torch
    from torso.model.weights import FolderWeights, RandomWeights

    if init == "random":
        return RandomWeights(config_of(model), seed)
    return FolderWeights(resolve(model, WEIGHT_FILES))


def config_of(model: str) -> GPT2Config:
    """The model's shape, without its weights."""
    if model in SIZES:
        return SIZES[model]
    return GPT2Config.from_json(resolve(model, ("config.json",)) / "config.json")


def tokenizer_folder(model: str) -> Path:
    """Folder that holds the model's tokenizer files."""
    return resolve(model, TOKENIZER_FILES)


def resolve(model: str, patterns: tuple[str, ...]) -> Path:
    """A local folder for `model`: packaged, given, or from the Hugging Face hub or its cache."""
    if model == "mini":
        return Path(str(resources.files("torso.model") / "mini"))
    if model in SIZES:
        return _from_hub(model, patterns)
    folder = Path(model).expanduser()
    if not model or not folder.is_dir():
        known = ", ".join(["mini", *SIZES])
        raise WeightsError(f"{model!r} is neither a folder nor one of {known}", "Give one of them with --model.")
    return folder


def _from_hub(model: str, patterns: tuple[str, ...]) -> Path:
    """Files of a published model; only safetensors, never a pickle. What the cache holds is not asked for again."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository = f"openai-community/{model}"
    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(patterns), local_files_only=True))
        if _suffices(folder, patterns):  # the library returns snapshots of which other files were fetched, too
            return folder
    except LocalEntryNotFoundError:
        pass
    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # the library lets its HTTP client's own errors through
        remedy = "Give a folder in Hugging Face layout with --model, or train from scratch with --init random."
        what = model
        if patterns == TOKENIZER_FILES:
            what, remedy = f"{model}'s tokenizer", "Give a folder that holds it with --tokenizer."
        found = f"{what} is not in the Hugging Face cache and {repository} cannot be fetched"
        raise WeightsError(f"{found} ({type(error).__name__})", remedy) from error
    _check_sums(folder)
    return folder


def _suffices(folder: Path, patterns: tuple[str, ...]) -> bool:
    if patterns == TOKENIZER_FILES:
        return any(all((folder / name).is_file() for name in names) for names in (patterns[:1], patterns[1:]))
    return all(any(folder.glob(pattern)) for pattern in patterns if not pattern.endswith(".index.json"))


def _check_sums(folder: Path) -> None:
    """Compare weights just fetched with the SHA-256 that the cache names them by; the library checks sizes only."""
    for path in folder.glob("*.safetensors"):
        blob = path.resolve()
        if _SHA256.fullmatch(blob.name) is None:
            continue  # a copy, on file systems without links
        with blob.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != blob.name:
            path.unlink()
            blob.unlink()
            raise WeightsError(f"{path} was damaged on its way: its SHA-256 is {found}", "Try again.")
