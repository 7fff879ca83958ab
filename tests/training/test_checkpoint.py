from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torso.errors import CheckpointError
from torso.training import checkpoint as checkpoints


def a_state(value: float = 1.0) -> dict[str, torch.Tensor]:
    names = [f"{kind}:h.0.lora_A" for kind in ("adapter", "exp_avg", "exp_avg_sq")]
    return {name: torch.full((2, 2), value) for name in names} | {"optimizer_step": torch.tensor([3])}


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 5, a_state(), {"seed": 1})
    loaded = checkpoints.load_newest(tmp_path)
    assert loaded is not None
    assert (loaded.step, loaded.info) == (5, {"step": 5, "seed": 1})
    assert all(torch.equal(t, a_state()[name]) for name, t in loaded.state.items())


@pytest.mark.parametrize("name", ["state.safetensors", "info.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, name: str, damage: str) -> None:
    checkpoints.save(tmp_path, 5, a_state(1.0), {})
    file = checkpoints.save(tmp_path, 9, a_state(2.0), {}) / name
    data = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        data[3] ^= 255
        file.write_bytes(bytes(data) if damage == "flip" else bytes(data[:-7]))
    loaded = checkpoints.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.step == 5
    assert "step-00000009" in loaded.warnings[0]


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.save(tmp_path, step, a_state(), {})
    assert checkpoints.steps(tmp_path) == [3, 4]


def test_a_leftover_of_a_killed_save_is_ignored_and_cleared(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, a_state(), {})
    (tmp_path / ".tmp-00000002-99").mkdir()
    (tmp_path / ".tmp-00000002-99" / "state.safetensors").write_bytes(b"half")
    assert checkpoints.load_newest(tmp_path).step == 1  # type: ignore[union-attr]
    checkpoints.save(tmp_path, 2, a_state(), {})
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_save_that_fails_leaves_the_earlier_ones_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save(tmp_path, 1, a_state(), {})

    def no_room(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_synced", no_room)
    with pytest.raises(CheckpointError, match=r"No space left.*intact"):
        checkpoints.save(tmp_path, 2, a_state(), {})
    assert checkpoints.load_newest(tmp_path).step == 1  # type: ignore[union-attr]
    assert not list(tmp_path.glob(".tmp-*"))


def test_no_checkpoint_at_all_is_none_and_only_damaged_ones_are_an_error(tmp_path: Path) -> None:
    assert checkpoints.load_newest(tmp_path / "nothing") is None
    (checkpoints.save(tmp_path, 1, a_state(), {}) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="step-00000001"):
        checkpoints.load_newest(tmp_path)


def test_a_part_of_the_state_is_chosen_by_parameter(tmp_path: Path) -> None:
    whole = checkpoints.Checkpoint(1, a_state() | {"adapter:h.9.lora_A": torch.zeros(1)}, {})
    assert whole.select(["h.0.lora_A"]).keys() == a_state().keys()
    with pytest.raises(CheckpointError, match=r"lacks exp_avg:h\.9\.lora_A"):
        whole.select(["h.9.lora_A"])
