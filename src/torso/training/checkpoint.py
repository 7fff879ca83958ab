"""Checkpoints: whole or not there.

A checkpoint is a directory `step-00000120`: `state.safetensors` (adapters and optimizer of head, body and tail),
`info.json` (what identifies the run), and `manifest.json` with sizes and SHA-256, written last. All of it is written
under a temporary name, synced, and renamed; an older one is removed only after the newer one has been verified.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from torso import faults
from torso.errors import CheckpointError
from torso.training.files import sync_directory, write_synced
from torso.training.part import MOMENTS, fingerprint

STATE, INFO, MANIFEST = "state.safetensors", "info.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory."""

    step: int
    state: dict[str, Tensor]
    info: dict[str, Any]
    warnings: tuple[str, ...] = field(default=())
    """One line for each newer checkpoint that was damaged and passed over."""

    def select(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The part of the state that belongs to these parameters."""
        kinds = ("adapter", *MOMENTS)
        keys = [f"{kind}:{name}" for name in names for kind in kinds]
        missing = [key for key in keys if key not in self.state]
        if missing:
            raise CheckpointError(f"the checkpoint of step {self.step} lacks {missing[0]} and {len(missing) - 1} more")
        return {key: self.state[key] for key in keys} | {"optimizer_step": self.state["optimizer_step"]}

    def names(self, layers: range) -> list[str]:
        """Trainable parameters of these blocks."""
        prefixes = tuple(f"adapter:h.{layer}." for layer in layers)
        return [key.removeprefix("adapter:") for key in self.state if key.startswith(prefixes)]

    def digest(self) -> str:
        """The run's fingerprint at this step."""
        return fingerprint(self.state, self.step)


def save(folder: Path, step: int, state: Mapping[str, Tensor], info: Mapping[str, Any], keep: int = 2) -> Path:
    """Write the checkpoint of `step` into `folder`; keep the newest `keep`. Raises CheckpointError.

    When it fails (a full disk, say), the checkpoints that were there are untouched.
    """
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{step:08d}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        temporary.mkdir()
        _write_files(temporary, step, state, info)
        faults.reach("client", 0, "checkpoint.manifest", step)
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        sync_directory(folder)
        faults.reach("client", 0, "checkpoint.renamed", step)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {folder}: {error}",
            "The run's earlier checkpoints are intact; make room and resume.",
        ) from error
    _verify(final)
    for old in steps(folder)[:-keep]:
        shutil.rmtree(folder / f"step-{old:08d}", ignore_errors=True)
    faults.reach("client", 0, "checkpoint.pruned", step)
    return final


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint directory, in order; whether they are whole is not looked at."""
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def load(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of one step; raises CheckpointError naming what is damaged."""
    path = folder / f"step-{step:08d}"
    _verify(path)
    state = safetensors.torch.load_file(path / STATE)
    info = json.loads((path / INFO).read_text(encoding="utf-8"))
    return Checkpoint(step, state, info)


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, with a warning for each damaged newer one; None when there never was one."""
    found = steps(folder)
    warnings: list[str] = []
    for step in reversed(found):
        try:
            checkpoint = load(folder, step)
        except CheckpointError as error:
            warnings.append(str(error))
            continue
        notes = [f"{note}; going back to step {step}" for note in warnings]
        return Checkpoint(step, checkpoint.state, checkpoint.info, tuple(notes))
    if found:
        raise CheckpointError(f"no whole checkpoint in {folder}: {'; '.join(warnings)}")
    return None


def _write_files(path: Path, step: int, state: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    write_synced(path / STATE, safetensors.torch.save({name: t.contiguous() for name, t in state.items()}))
    faults.reach("client", 0, "checkpoint.state", step)
    write_synced(path / INFO, json.dumps({"step": step, **info}, indent=1).encode())
    manifest = {name: _describe(path / name) for name in (STATE, INFO)}
    write_synced(path / MANIFEST, json.dumps({"step": step, "files": manifest}, indent=1).encode())
    sync_directory(path)


def _describe(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _verify(path: Path) -> None:
    """Raise CheckpointError unless every file is as the manifest says."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path.name} has no readable {MANIFEST}: {error}") from error
    for name in (STATE, INFO):
        if not (path / name).is_file() or _describe(path / name) != files.get(name):
            raise CheckpointError(f"checkpoint {path.name} is damaged: {name} is not what its manifest says")


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
