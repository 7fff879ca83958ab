"""Checkpoints: whole or not there.

A checkpoint is a directory `step-00000120`: `state.safetensors` (adapters and optimizer of head, body and tail),
`info.json` (what identifies the run), and `manifest.json` with sizes and SHA-256, written last. All of it is written
under a temporary name, synced, and renamed; an older one is removed only after the newer one has been verified. A whole
checkpoint of the same step is moved aside to `step-00000120.old`, where it is found, until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from torso import faults
from torso.errors import CheckpointError
from torso.files import make_directory, sync_directory, write_synced
from torso.training.optimizer import MOMENTS
from torso.training.part import fingerprint

SCALE = "loss_scale"
"""Of fp16, in the state."""
Buffer = bytes | memoryview
PIECE = 1 << 20
"""Bytes that are read at once."""
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
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
        keys += ["optimizer_step", *(key for key in (SCALE,) if key in self.state)]
        return {key: self.state[key] for key in keys}

    def names(self, layers: range) -> list[str]:
        """Trainable parameters of these blocks."""
        prefixes = tuple(f"adapter:h.{layer}." for layer in layers)
        return [key.removeprefix("adapter:") for key in self.state if key.startswith(prefixes)]

    def trained(self) -> dict[str, Tensor]:
        """What was trained, without the optimizer's share, by name."""
        pairs = [(key.partition(":"), tensor) for key, tensor in self.state.items()]
        return {name: tensor for (kind, colon, name), tensor in pairs if colon and kind not in MOMENTS}

    def digest(self) -> str:
        """The run's fingerprint at this step."""
        return fingerprint(self.state, self.step)


def save(
    folder: Path,
    step: int,
    state: Mapping[str, Tensor],
    info: Mapping[str, Any],
    keep: int = 2,
    besides: Collection[int] = (),
) -> Path:
    """Write the checkpoint of `step` into `folder`; keep the newest `keep` whole ones, and those of steps `besides`.

    Raises CheckpointError. When it fails (a full disk, say), the checkpoints that were there are untouched.
    """
    final = folder / _name(step)
    temporary = folder / f".tmp-{step:08d}-{os.getpid()}"
    try:
        make_directory(folder)
        _remove_leftovers(folder)
        temporary.mkdir()
        _write_files(temporary, step, state, info)
        faults.reach("client", 0, "checkpoint.manifest", step)
        _put_in_place(temporary, final, step)
        sync_directory(folder)
        faults.reach("client", 0, "checkpoint.renamed", step)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _not_written(folder, step, error) from error
    _check(final, step)
    _remove(_aside(final))
    _remove_older(folder, step, keep, besides)
    faults.reach("client", 0, "checkpoint.pruned", step)
    return final


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint directory, in order; whether they are whole is not looked at."""
    names = [path.name.removesuffix(".old") for path in folder.glob("step-*")] if folder.is_dir() else []
    return sorted({int(name[5:]) for name in names if name[5:].isdigit()})


def is_whole(folder: Path, step: int) -> bool:
    """Whether the checkpoint of this step is there and can be loaded."""
    try:
        _find(folder, step)
    except CheckpointError:
        return False
    return True


def load(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of one step; raises CheckpointError naming what is damaged."""
    path = _find(folder, step)
    return Checkpoint(step, safetensors.torch.load_file(path / STATE), json.loads((path / INFO).read_bytes()))


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, with a warning for each damaged newer one; None when there never was one."""
    found = steps(folder)
    warnings: list[str] = []
    for step in reversed(found):
        try:
            checkpoint = load(folder, step)
        except CheckpointError as error:
            warnings.append(error.message)
            continue
        notes = [f"{note}; going back to the checkpoint of step {step}" for note in warnings]
        return Checkpoint(step, checkpoint.state, checkpoint.info, tuple(notes))
    if found:
        raise CheckpointError(f"no whole checkpoint in {folder}: {'; '.join(warnings)}", "Restore one, or train anew.")
    return None


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _not_written(folder: Path, step: int, error: OSError) -> CheckpointError:
    there = steps(folder)
    last = f"The checkpoint of step {there[-1]} is intact" if there else "There is none before it"
    return CheckpointError(
        f"the checkpoint of step {step} could not be written to {folder}: {error.strerror or error}",
        f"{last}; make room, then `torso resume` the run.",
    )


def _write_files(path: Path, step: int, state: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    about = json.dumps({"step": step, **info}, indent=1).encode()
    files: dict[str, list[Buffer]] = {STATE: as_safetensors(state), INFO: [about]}
    for name, chunks in files.items():
        write_synced(path / name, *chunks)
        faults.reach("client", 0, f"checkpoint.{Path(name).stem}", step)
    manifest = {name: _describe(chunks) for name, chunks in files.items()}
    write_synced(path / MANIFEST, json.dumps({"step": step, "files": manifest}, indent=1).encode())
    sync_directory(path)


def as_safetensors(state: Mapping[str, Tensor]) -> list[Buffer]:
    """The content of a safetensors file in pieces, which are the tensors themselves and no copies of them.

    The format: the header's length (8 bytes, little-endian), a JSON header, the tensors' bytes one after the other
    (https://github.com/huggingface/safetensors, "Format").
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    header, end = dict[str, Any](), 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    data = [_bytes_of(tensor) for tensor in tensors.values() if tensor.numel()]
    return [len(text).to_bytes(8, "little"), text, *data]


def _bytes_of(tensor: Tensor) -> memoryview:
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def _describe(chunks: Iterable[Buffer]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _put_in_place(temporary: Path, final: Path, step: int) -> None:
    """There is no moment without a whole checkpoint of this step where there was one."""
    try:
        _check(final, step)
        _remove(_aside(final))
        os.rename(final, _aside(final))
    except CheckpointError:
        _remove(final)
    os.rename(temporary, final)


def _find(folder: Path, step: int) -> Path:
    """Where a step's checkpoint is; raises CheckpointError."""
    path = folder / _name(step)
    try:
        _check(path, step)
    except CheckpointError:
        # a save that was killed while it replaced the checkpoint
        path = _aside(path)
        if not path.exists():
            raise
        _check(path, step)
    return path


def _check(path: Path, step: int) -> None:
    """Raise CheckpointError unless every file is as the manifest says."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        described = dict(manifest["files"])
        belongs = manifest["step"] == step
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path.name} has no readable {MANIFEST}: {error}") from error
    if not belongs:
        raise CheckpointError(f"checkpoint {path.name} is damaged: its {MANIFEST} is of step {manifest['step']}")
    for name in (STATE, INFO):
        _check_file(path, name, described.get(name))


def _check_file(path: Path, name: str, described: Any) -> None:
    try:
        with (path / name).open("rb") as file:
            found = _describe(iter(lambda: file.read(PIECE), b""))
    except OSError as error:
        raise CheckpointError(f"checkpoint {path.name} is damaged: {name}: {error.strerror}") from error
    if found != described:
        raise CheckpointError(f"checkpoint {path.name} is damaged: {name} is not what its {MANIFEST} says")


def _remove_older(folder: Path, step: int, keep: int, besides: Collection[int]) -> None:
    """What is older than the newest `keep` whole ones, and not to be kept besides."""
    older = [one for one in reversed(steps(folder)) if one < step]
    kept = 1
    for one in older:
        if kept < keep and is_whole(folder, one):
            kept += 1
        elif kept >= keep and one not in besides:
            _remove(folder / _name(one))
            _remove(_aside(folder / _name(one)))


def _remove(path: Path) -> None:
    """A kill in between leaves nothing that looks like a damaged checkpoint."""
    if path.exists():
        leftover = path.with_name(f".tmp-{path.name}-{os.getpid()}")
        path.rename(leftover)
        shutil.rmtree(leftover, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
