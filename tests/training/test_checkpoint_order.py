"""What a save does to the disk, call by call, and what a kill between any two of the calls leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torso.training import checkpoint as checkpoints

CALLS = ("fsync", "rename", "mkdir", "unlink", "rmdir")


class Killed(BaseException):
    """Passes through every handler, as the end of a process does."""


def a_state(value: float) -> dict[str, torch.Tensor]:
    return {"adapter:h.0.lora_A": torch.full((2, 2), value), "optimizer_step": torch.tensor([3])}


def value_of(checkpoint: checkpoints.Checkpoint | None) -> float:
    assert checkpoint is not None
    return float(checkpoint.state["adapter:h.0.lora_A"][0, 0])


def watched(monkeypatch: pytest.MonkeyPatch, before: Callable[[str, str], None]) -> None:
    """Calls `before(call, name)` ahead of each call that changes the disk."""

    def wrap(call: str) -> None:
        original = getattr(os, call)

        def changed(target: Any, *rest: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
            name = Path(path).name
            to = f" to {Path(rest[0]).name}" if call == "rename" else ""
            before(call, (name + to).replace(f"-{os.getpid()}", ""))
            return original(target, *rest, **options)

        monkeypatch.setattr(os, call, changed)

    for call in CALLS:
        wrap(call)


def test_files_are_synced_then_the_manifest_then_the_directory_is_renamed_and_only_then_an_old_one_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, step, a_state(1.0), {})
    events: list[str] = []
    read = checkpoints._check

    def verified(path: Path, step: int) -> dict[str, bytes]:
        events.append(f"verify {path.name}")
        return read(path, step)

    monkeypatch.setattr(checkpoints, "_check", verified)
    watched(monkeypatch, lambda call, name: events.append(f"{call} {name}"))
    checkpoints.save(tmp_path, 3, a_state(1.0), {})
    assert [event for event in events if not event.startswith(("unlink", "rmdir"))] == [
        "mkdir .tmp-00000003",
        "fsync state.safetensors",
        "fsync info.json",
        "fsync manifest.json",
        "fsync .tmp-00000003",
        "verify step-00000003",
        "rename .tmp-00000003 to step-00000003",
        f"fsync {tmp_path.name}",
        "verify step-00000003",
        "verify step-00000002",
        "rename step-00000001 to .tmp-step-00000001",
    ]


def test_a_new_folder_for_checkpoints_is_itself_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    watched(monkeypatch, lambda call, name: events.append(f"{call} {name}"))
    checkpoints.save(tmp_path / "checkpoints", 1, a_state(1.0), {})
    assert events[:2] == ["mkdir checkpoints", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize("case", ["a new step", "the same step again", "a damaged one again"])
def test_a_kill_before_any_call_leaves_a_whole_checkpoint(tmp_path: Path, case: str) -> None:
    call = 0
    while _killed_before(call, tmp_path / str(call), case):
        call += 1
    assert call > 8


def _killed_before(number: int, folder: Path, case: str) -> bool:
    """Whether the save was killed before it ended; checks what is left then."""
    for step in (1, 2):
        checkpoints.save(folder, step, a_state(1.0), {})
    if case == "a damaged one again":
        (folder / "step-00000002" / "info.json").unlink()
    calls = iter(range(1000))

    def kill(call: str, name: str) -> None:
        if next(calls) == number:
            raise Killed

    step = 3 if case == "a new step" else 2
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched(monkeypatch, kill)
        killed = False
        try:
            checkpoints.save(folder, step, a_state(2.0), {})
        except Killed:
            killed = True
    newest = checkpoints.load_newest(folder)
    assert newest is not None
    assert newest.step >= (1 if case == "a damaged one again" else 2)
    assert value_of(newest) in ({1.0, 2.0} if killed else {2.0})
    checkpoints.save(folder, step, a_state(3.0), {})
    assert value_of(checkpoints.load(folder, step)) == 3.0
    assert len(checkpoints.steps(folder)) == 2
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".") or path.name.endswith(".old")]
    return killed
