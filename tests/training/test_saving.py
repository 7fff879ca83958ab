"""When the loop saves, what it keeps, and what it says of damaged checkpoints."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import time
import types
from pathlib import Path

import pytest
import torch
from tests.split.harness import CONFIG, TRAINING, Quiet, Recipe

from torso import files
from torso.errors import CheckpointError, ConfigError, StorageError
from torso.records import EvaluationRecord, SaveRecord
from torso.training import checkpoint as checkpoints
from torso.training import loop
from torso.training.config import TrainingConfig
from torso.training.run_directory import MetricsLog

SELDOM = dataclasses.replace(TRAINING, checkpoint_every_steps=100)


def saved(recipe: Recipe) -> list[int]:
    return checkpoints.steps(recipe.folder / "checkpoints")


def recipe_in(folder: Path, training: TrainingConfig = TRAINING, clients: int = 1) -> Recipe:
    return Recipe(folder=folder, training=training, clients=clients)


def test_a_checkpoint_is_made_every_so_many_steps_and_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    # three steps an epoch
    every_two = recipe_in(tmp_path / "a", dataclasses.replace(TRAINING, keep_checkpoints=9))
    every_two.train(7)
    assert saved(every_two) == [0, 2, 3, 4, 6, 7]
    seldom = recipe_in(tmp_path / "b", dataclasses.replace(SELDOM, keep_checkpoints=9))
    seldom.train(7)
    assert saved(seldom) == [0, 3, 6, 7]


def test_each_save_is_on_record_with_its_time_and_the_memory_that_it_took(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path / "a")
    recipe.train(3)
    saves = [r for r in MetricsLog(recipe.folder).read() if isinstance(r, SaveRecord)]
    assert [save.step for save in saves] == [0, 2, 3]
    assert all(save.seconds > 0 for save in saves)
    assert all(1e8 < save.memory_bytes < 1e11 for save in saves)  # of this very process, in bytes


def test_a_checkpoint_is_made_every_so_many_minutes_too(tmp_path: Path) -> None:
    often = dataclasses.replace(SELDOM, keep_checkpoints=9, checkpoint_every_minutes=1e-9)
    alone, together = recipe_in(tmp_path / "a", often), recipe_in(tmp_path / "b", often, clients=2)
    alone.train(5)
    together.train(5)
    assert saved(alone) == saved(together) == [0, 1, 2, 3, 4, 5]


def test_the_clock_of_the_minutes_starts_anew_at_each_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a clock that goes on by a minute whenever it is read: at a roll-back, after a save, and where a save may be due
    ticks = itertools.count(0, 60)
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: float(next(ticks))))
    often = dataclasses.replace(SELDOM, keep_checkpoints=9, checkpoint_every_minutes=2.0)
    recipe = recipe_in(tmp_path / "a", often)
    recipe.train(6)
    assert saved(recipe) == [0, 2, 3, 5, 6]


@pytest.mark.parametrize("keep", [1, 0, -1])
def test_fewer_than_two_checkpoints_are_refused(keep: int) -> None:
    with pytest.raises(ConfigError, match=f"keep_checkpoints is {keep}"):
        TrainingConfig(keep_checkpoints=keep)


def test_the_best_by_dev_perplexity_outlives_newer_ones(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path / "a", dataclasses.replace(TRAINING, keep_epochs=0))
    recipe.train(2)
    record = EvaluationRecord(step=2, subset="dev", adapted=True, perplexity=3.0, scores={})
    MetricsLog(recipe.folder).append(record)
    recipe.train(12)
    assert saved(recipe) == [2, 10, 12]


def test_the_ends_of_the_newest_epochs_are_kept_to_be_scored_on_dev(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path / "a", dataclasses.replace(TRAINING, keep_epochs=2, checkpoint_every_steps=1))
    recipe.train(11)
    assert saved(recipe) == [6, 9, 10, 11]


def test_a_damaged_checkpoint_is_named_with_the_steps_that_are_replayed_and_written_again(tmp_path: Path) -> None:
    whole, damaged = recipe_in(tmp_path / "whole"), recipe_in(tmp_path / "damaged")
    whole.train(6)
    damaged.train(4)
    file = damaged.folder / "checkpoints" / "step-00000004" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    listener = Quiet()
    damaged.train(6, listener)
    assert "checkpoint step-00000004 is damaged: state.safetensors" in listener.messages[0]
    assert "going back to the checkpoint of step 3" in listener.messages[0]
    assert listener.messages[1] == "warning: 1 step will be replayed"
    assert all(checkpoints.is_whole(damaged.folder / "checkpoints", step) for step in saved(damaged))
    assert (damaged.digest(), damaged.curve()) == (whole.digest(), whole.curve())


def test_steps_that_were_logged_after_a_damaged_checkpoint_count_as_replayed(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path / "a")
    recipe.train(4)
    lines = (recipe.folder / "metrics.jsonl").read_text().splitlines()
    line = [line for line in lines if '"kind": "step"' in line][-1]
    with open(recipe.folder / "metrics.jsonl", "a", encoding="utf-8") as log:
        log.write(line.replace('"step": 4', '"step": 5') + "\n")
    (recipe.folder / "checkpoints" / "step-00000004" / "manifest.json").unlink()
    listener = Quiet()
    recipe.train(4, listener)
    assert listener.messages[1] == "warning: 2 steps will be replayed"


def test_a_rank_that_comes_late_to_a_save_joins_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, recipe = recipe_in(tmp_path / "whole"), recipe_in(tmp_path / "a", clients=2)
    whole.train(4)
    original = loop.Trainer._save

    def late(trainer: loop.Trainer) -> None:
        if trainer._group.rank == 1:
            time.sleep(0.3)
        original(trainer)

    monkeypatch.setattr(loop.Trainer, "_save", late)
    recipe.train(4)
    assert (recipe.digest(), recipe.curve()) == (whole.digest(), whole.curve())


def test_a_full_disk_ends_a_save_and_the_run_goes_on_to_the_same_bits_when_there_is_room(tmp_path: Path) -> None:
    whole, recipe = recipe_in(tmp_path / "whole"), recipe_in(tmp_path / "a")
    whole.train(6)
    recipe.train(2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(checkpoints, "write_synced", no_room)
        with pytest.raises(CheckpointError, match=r"step 3 .*No space left.*step 2 is intact"):
            recipe.train(6)
    assert saved(recipe) == [0, 2]
    recipe.train(6)
    assert (recipe.digest(), recipe.curve()) == (whole.digest(), whole.curve())


def test_a_full_disk_at_a_log_line_ends_the_run_and_it_goes_on_too(tmp_path: Path) -> None:
    whole, recipe = recipe_in(tmp_path / "whole"), recipe_in(tmp_path / "a")
    whole.train(4)
    recipe.train(2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(files, "_write", cut_short)
        with pytest.raises(StorageError, match=r"metrics\.jsonl could not be written: No space left"):
            recipe.train(4)
    recipe.train(4)
    assert (recipe.digest(), recipe.curve()) == (whole.digest(), whole.curve())


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut_short(descriptor: int, data: bytes) -> None:
    """Half of a log's line fits; other files do."""
    data = bytes(data)
    if data.startswith(b'{"kind"') and data.count(b"\n") == 1:
        os.write(descriptor, data[: len(data) // 2])
        no_room()
    os.write(descriptor, data)


def test_lines_are_durable_before_the_checkpoint_that_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    original = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    recipe_in(tmp_path / "a").train(2)
    last = len(synced) - 1 - synced[::-1].index("state.safetensors")
    assert "metrics.jsonl" in synced[last - 1 : last]


def test_a_checkpoint_holds_adapters_and_optimizer_and_not_the_base(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path / "a")
    recipe.train(2)
    path = recipe.folder / "checkpoints" / "step-00000002"
    state = checkpoints.load(path.parent, 2).state
    adapter = sum(tensor.numel() for name, tensor in state.items() if name.startswith("adapter:"))
    assert {name.split(":")[0] for name in state} == {"adapter", "exp_avg", "exp_avg_sq", "optimizer_step"}
    assert sum(tensor.numel() for tensor in state.values()) == 3 * adapter + 1
    # three float32 numbers a parameter, and the names
    size = sum(file.stat().st_size for file in path.iterdir())
    assert 12 * adapter < size < 12 * adapter + 150 * len(state) + 2000
    base = {(CONFIG.vocab_size, CONFIG.n_embd), (CONFIG.n_embd, 4 * CONFIG.n_embd)}
    assert not base & {tuple(tensor.shape) for tensor in state.values()}
    assert all(tensor.dtype == torch.float32 for name, tensor in state.items() if ":" in name)
