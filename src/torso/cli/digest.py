"""`torso digest RUN_DIR [--step N]`: one hash of adapters, optimizer and step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.chosen import chosen
from torso.cli.parsing import parse
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
    found = chosen(run, "last" if options.step is None else str(options.step))
    document = {"run": str(run.path), "step": found.step, "digest": found.digest()}
    print(json.dumps(document) if options.json else f"{document['digest']}  step {found.step}  {run.path}")
    return 0
