"""`torso digest RUN_DIR [--step N]`: one hash of adapters, optimizer and step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse
from torso.errors import RunDirectoryError
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import RunDirectory


@dataclass(frozen=True)
class DigestArguments:
    """SHA-256 over the adapters and optimizer of head, body and tail, and the step."""

    run_dir: Path
    """The run."""
    step: int | None = None
    """Of this checkpoint; default: the newest."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Print the digest."""
    options = parse(DigestArguments, "digest", arguments)
    run = RunDirectory(options.run_dir)
    if options.step is None:
        found = checkpoints.load_newest(run.checkpoints)
    else:
        found = checkpoints.load(run.checkpoints, options.step)
    if found is None:
        raise RunDirectoryError(f"{run.path} has no checkpoint yet", "Train it first.")
    document = {"run": str(run.path), "step": found.step, "digest": found.digest()}
    print(json.dumps(document) if options.json else f"{document['digest']}  step {found.step}  {run.path}")
    return 0
