from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

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
    assert len(loaded.warnings) == 1
    assert "step-00000009" in loaded.warnings[0]
    assert name in loaded.warnings[0]
    assert "going back to the checkpoint of step 5" in loaded.warnings[0]


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.save(tmp_path, step, a_state(), {})
    assert checkpoints.steps(tmp_path) == [3, 4]


def test_more_are_kept_when_asked_for(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.save(tmp_path, step, a_state(), {}, keep=3)
    assert checkpoints.steps(tmp_path) == [2, 3, 4]


def test_the_best_is_kept_besides_and_goes_when_another_is_better(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.save(tmp_path, step, a_state(), {}, besides=[1])
    assert checkpoints.steps(tmp_path) == [1, 3, 4]
    checkpoints.save(tmp_path, 5, a_state(), {}, besides=[5])
    assert checkpoints.steps(tmp_path) == [4, 5]


def test_a_damaged_one_does_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, step, a_state(), {})
    (tmp_path / "step-00000002" / "state.safetensors").unlink()
    checkpoints.save(tmp_path, 3, a_state(), {})
    assert checkpoints.steps(tmp_path) == [1, 2, 3]
    checkpoints.save(tmp_path, 4, a_state(), {})
    assert checkpoints.steps(tmp_path) == [3, 4]


def test_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    (checkpoints.save(tmp_path, 1, a_state(), {}) / "manifest.json").unlink()
    assert not checkpoints.is_whole(tmp_path, 1)
    checkpoints.save(tmp_path, 1, a_state(2.0), {})
    assert torch.equal(checkpoints.load(tmp_path, 1).state["adapter:h.0.lora_A"], torch.full((2, 2), 2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, a_state(), {}).rename(tmp_path / "step-00000002")
    with pytest.raises(CheckpointError, match="is of step 1"):
        checkpoints.load(tmp_path, 2)


def test_any_flipped_bit_of_any_file_is_noticed(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, 5, a_state(), {"seed": 1})
    for file in path.iterdir():
        data = file.read_bytes()
        for place, bit in [(p, b) for p in range(len(data)) for b in (1, 2, 4, 8, 16, 32, 64, 128)]:
            file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
            assert not checkpoints.is_whole(tmp_path, 5), (file.name, place, bit)
        file.write_bytes(data)
    assert checkpoints.is_whole(tmp_path, 5)


def test_a_leftover_of_a_killed_save_is_ignored_and_cleared(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, a_state(), {})
    (tmp_path / ".tmp-00000002-99").mkdir()
    (tmp_path / ".tmp-00000002-99" / "state.safetensors").write_bytes(b"half")
    assert checkpoints.load_newest(tmp_path).step == 1  # type: ignore[union-attr]
    checkpoints.save(tmp_path, 2, a_state(), {})
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("name", ["state.safetensors", "info.json", "manifest.json"])
def test_a_full_disk_leaves_the_earlier_ones_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    checkpoints.save(tmp_path, 1, a_state(), {})
    write = checkpoints.write_synced

    def no_room(path: Path, *data: checkpoints.Buffer) -> None:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, *data)

    monkeypatch.setattr(checkpoints, "write_synced", no_room)
    with pytest.raises(CheckpointError, match=r"step 2 .* No space left.*step 1 is intact; make room"):
        checkpoints.save(tmp_path, 2, a_state(), {})
    assert checkpoints.load_newest(tmp_path).step == 1  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


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


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    state = {
        "a": torch.randn(3, 5),
        "t": torch.randn(4, 2).T,
        "none": torch.zeros(0, 7),
        "step": torch.tensor([2**40]),
        "é ": torch.tensor([[1.0]], dtype=torch.float64),
    }
    (tmp_path / "state.safetensors").write_bytes(b"".join(checkpoints.as_safetensors(state)))
    found = load_file(tmp_path / "state.safetensors")
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
