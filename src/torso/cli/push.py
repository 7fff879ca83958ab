"""`torso push RUN|DIR --to NAME`: to the Hugging Face hub, when somebody asks for it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torso.cli.export import of_run, write
from torso.cli.parsing import parse
from torso.errors import ConfigError, TransportError
from torso.training.run_directory import RunDirectory

_EXPORTED = ("adapter_config.json", "config.json")


@dataclass(frozen=True, kw_only=True)
class PushArguments:
    """Upload a run's adapter, or a folder of `torso export`, to the Hugging Face hub."""

    folder: Path
    """The run, or the folder."""
    to: str = ""
    """Repository, e.g. user/name."""
    public: bool = False
    """Make a new repository public; without it a new one is private."""
    checkpoint: str = "last"
    """Of a run: last, best, or a step."""


def main(arguments: Sequence[str]) -> int:
    """Upload, and print where it is. The token is the hub library's own: HF_TOKEN, or what `hf auth login` stored."""
    options = parse(PushArguments, "push", arguments)
    if options.to.count("/") != 1:
        raise ConfigError(f"to is {options.to!r}", "Give --to user/name.")
    if any((options.folder / name).is_file() for name in _EXPORTED):
        print(upload(options.folder, options.to, not options.public))
        return 0
    with tempfile.TemporaryDirectory(prefix="torso-push-") as temporary:
        folder = Path(temporary) / "adapter"
        write(of_run(RunDirectory(options.folder), options.checkpoint), folder, "peft")
        print(upload(folder, options.to, not options.public))
    return 0


def upload(folder: Path, to: str, private: bool) -> str:
    """The repository's URL. Raises ConfigError without a token or its right, TransportError without a network."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if get_token() is None:
        raise ConfigError("there is no token for the Hugging Face hub", "Set HF_TOKEN, or run `hf auth login`.")
    api: Any = HfApi()
    try:
        url = api.create_repo(to, private=private, exist_ok=True)
        api.upload_folder(repo_id=to, folder_path=folder, commit_message="Upload with Torso")
    except HFValidationError as error:
        raise ConfigError(f"to is {to!r}: {error}", "Give --to user/name.") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        raise ConfigError(f"the hub refused {to} (HTTP {status})", "Check the name and the token's rights.") from None
    except (httpx.HTTPError, OSError) as error:
        raise TransportError(f"the hub cannot be reached: {type(error).__name__}: {error}", "Try again.") from None
    return str(url)
