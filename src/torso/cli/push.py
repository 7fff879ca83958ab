"""`torso push RUN|DIR --to NAME`: to the Hugging Face hub, when somebody asks for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torso.adapters import peft_format
from torso.cli.adapters import is_path
from torso.cli.export import Format, of_run, write
from torso.cli.parsing import parse, refuse_idle
from torso.errors import ConfigError, TransportError
from torso.model.hub import TOKENIZER_FILES
from torso.model.names import expected_shapes
from torso.model.weights import FolderWeights
from torso.training.run_directory import RunDirectory

_ADAPTER = (peft_format.CONFIG, peft_format.TENSORS)
_MODEL = ("config.json", "model.safetensors", *TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, kw_only=True)
class PushArguments:
    """Upload a run's adapter or model, or a folder of `torso export`, to the Hugging Face hub."""

    folder: Path
    """The run, or the folder."""
    to: str = ""
    """Repository, e.g. user/name."""
    public: bool = False
    """Make a new repository public; without it a new one is private. One that is there stays what it is."""
    format: Format = "peft"
    """Of a run: peft, merged or hf, as for `torso export`."""
    checkpoint: str = "last"
    """Of a run: last, best, or a step."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Upload, and print where it is. The token is the hub library's own: HF_TOKEN, or what `hf auth login` stored."""
    options = parse(PushArguments, "push", arguments)
    if options.to.count("/") != 1 or not all(options.to.split("/")):
        raise ConfigError(f"to is {options.to!r}", "Give --to user/name.")
    url = _push(options)
    print(json.dumps({"url": url}) if options.json else url)
    return 0


def _push(options: PushArguments) -> str:
    if any((options.folder / name).is_file() for name in (_ADAPTER[0], _MODEL[0])):
        refuse_idle(options, "an exported folder", ["format", "checkpoint"])
        return upload(contents(options.folder), options.to, not options.public)
    run = RunDirectory(options.folder)
    with tempfile.TemporaryDirectory(prefix="torso-push-") as temporary:
        folder = Path(temporary) / "exported"
        write(of_run(run, options.checkpoint), folder, options.format)
        return upload(contents(folder), options.to, not options.public)


def contents(folder: Path) -> dict[str, Path | bytes]:
    """What is uploaded of a folder, by name: the files of an export, once checked, and nothing else that lies there."""
    is_adapter = (folder / _ADAPTER[0]).is_file()
    if is_adapter:
        peft_format.read(folder)
    elif not (folder / "model.safetensors").is_file():
        raise ConfigError(f"{folder} has no model.safetensors", "Give a folder that `torso export` wrote.")
    else:
        source = FolderWeights(folder)
        source.check(expected_shapes(source.config))
    names = ("README.md", *(_ADAPTER if is_adapter else _MODEL))
    files: dict[str, Path | bytes] = {name: folder / name for name in names if (folder / name).is_file()}
    return files | ({_ADAPTER[0]: _without_local_path(folder / _ADAPTER[0])} if is_adapter else {})


def _without_local_path(path: Path) -> bytes:
    """adapter_config.json; the base's folder on this machine means nothing to others, and may tell them too much."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    base = str(settings.get("base_model_name_or_path") or "")
    if base and is_path(base):
        settings["base_model_name_or_path"] = None
    return json.dumps(settings, indent=2, sort_keys=True).encode()


def upload(files: dict[str, Path | bytes], to: str, private: bool) -> str:
    """One commit; returns the repository's URL.

    Raises ConfigError without a token or its right, TransportError when the hub cannot be reached or fails.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if get_token() is None:
        raise ConfigError("there is no token for the Hugging Face hub", "Set HF_TOKEN, or run `hf auth login`.")
    api: Any = HfApi()
    try:
        url = api.create_repo(to, private=private, exist_ok=True)
        added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=data) for name, data in files.items()]
        api.create_commit(to, operations=added, commit_message="Upload with Torso")
    except HFValidationError as error:
        raise ConfigError(f"to is {to!r}: {error}", "Give --to user/name.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status >= 500:
            raise TransportError(f"the hub failed (HTTP {status})", "Try again.") from None
        raise ConfigError(f"the hub refused {to} (HTTP {status})", "Check the name and the token's rights.") from None
    except Exception as error:  # the library lets its HTTP client's own errors through, and changed the client twice
        raise TransportError(f"the upload failed: {type(error).__name__}: {error}", "Try again.") from None
    return str(url)
