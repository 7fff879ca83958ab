"""From what people type after --model to weights and tokenizer files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from torso.errors import WeightsError
from torso.model.config import SIZES, GPT2Config
from torso.model.weights import FolderWeights, RandomWeights

Init = Literal["pretrained", "random"]
WEIGHT_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")


def open_source(model: str, init: Init = "pretrained", seed: int = 0) -> FolderWeights | RandomWeights:
    """Weights of `model`: "mini", a published size, or a folder. Raises WeightsError."""
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
    if not folder.is_dir():
        known = ", ".join(["mini", *SIZES])
        raise WeightsError(f"{model!r} is neither a folder nor one of {known}", "Give one of them with --model.")
    return folder


def _from_hub(model: str, patterns: tuple[str, ...]) -> Path:
    """Files of a published model; only safetensors, never a pickle."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repository = f"openai-community/{model}"
    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns), local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise WeightsError(
            f"{model} is not in the Hugging Face cache and {repository} cannot be fetched ({type(error).__name__})",
            "Give a folder in Hugging Face layout with --model, or train from scratch with --init random.",
        ) from error
