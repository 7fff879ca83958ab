"""Commands on a run's checkpoints: which one is used, who may write, and what a full disk leaves."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.conftest import SHAPE, make_model
from tests.split.harness import Servers, serving

from torso import files
from torso.cli.main import main
from torso.records import EvaluationRecord
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import MetricsLog, RunDirectory

SETTINGS = ("--lora-rank", "2", "--global-batch-size", "8", "--micro-batch-size", "4", "--threads", "1")
STEPS_PER_EPOCH = 6

Torso = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def torso(capsys: pytest.CaptureFixture[str]) -> Torso:
    """Runs a command; returns its exit code and the lines that it wrote about errors and warnings."""

    def run(*words: str | Path) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        lines = capsys.readouterr().err.splitlines()
        assert not any("Traceback" in line for line in lines), lines
        return code, [line for line in lines if line.startswith(("torso:", "warning:"))]

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Path:
    """Tiny, with room for decoding."""
    shape = dataclasses.replace(SHAPE, n_positions=96)
    return make_model(tmp_path_factory.mktemp("models") / "tiny", train_small, seed=0, shape=shape)


@pytest.fixture(scope="module")
def settings(model: Path, tiny_data: str) -> tuple[str | Path, ...]:
    return ("--model", model, "--data", tiny_data, *SETTINGS)


@pytest.fixture(scope="module")
def trained(settings: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished epoch, with checkpoints of steps 4 and 6."""
    path = tmp_path_factory.mktemp("trained") / "run"
    words = (*settings, "--evaluate", "none", "--checkpoint-every-steps", "4", "--run-dir", path)
    assert main(["train", *map(str, words)]) == 0
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunDirectory:
    """A copy of it."""
    shutil.copytree(trained, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


@pytest.fixture(scope="module")
def undisturbed(settings: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of two epochs in one go."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    words = (*settings, "--epochs", "2", "--evaluate", "none", "--run-dir", path)
    assert main(["train", *map(str, words)]) == 0
    return digest(RunDirectory(path))


def digest(run: RunDirectory) -> str:
    newest = checkpoints.load_newest(run.checkpoints)
    assert newest is not None
    return newest.digest()


def evaluated(run: RunDirectory) -> int:
    """The step of the newest evaluation."""
    records = [record for record in MetricsLog(run.path).read() if isinstance(record, EvaluationRecord)]
    return records[-1].step


def damage(run: RunDirectory, step: int) -> None:
    file = run.checkpoints / f"step-{step:08d}" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def test_an_evaluation_can_be_of_the_last_the_best_or_any_checkpoint(torso: Torso, run: RunDirectory) -> None:
    expected = {"last": 6, "4": 4, "best": 6 if perplexity_at(run, 6) < perplexity_at(run, 4) else 4}
    for which, step in expected.items():
        assert torso("evaluate", run.path, "--checkpoint", which)[0] == 0
        assert evaluated(run) == step


def test_an_adapter_is_not_evaluated_on_other_weights_than_it_was_trained_on(
    torso: Torso, run: RunDirectory, model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    stored = load_file(other / "model.safetensors")
    save_file(stored | {"transformer.ln_f.bias": torch.ones(SHAPE.n_embd)}, other / "model.safetensors")
    settings = run.path / "config.toml"
    settings.write_text(settings.read_text().replace(str(model), str(other)), encoding="utf-8")
    for command in (("evaluate", run.path), ("generate", run.path, "--prompt", "a", "--max-new-tokens", "2")):
        code, (line,) = torso(*command)
        assert code == 2
        assert "embeddings and final norm" in line


def perplexity_at(run: RunDirectory, step: int) -> float:
    assert main(["evaluate", str(run.path), "--checkpoint", str(step)]) == 0
    return next(r.perplexity for r in MetricsLog(run.path).read(EvaluationRecord) if r.step == step)  # type: ignore[union-attr]


def test_the_best_is_by_epoch_loss_before_any_evaluation(torso: Torso, run: RunDirectory) -> None:
    assert torso("evaluate", run.path, "--checkpoint", "best", "--max-groups", "1")[0] == 0
    assert evaluated(run) == 6
    [record] = MetricsLog(run.path).read(EvaluationRecord)
    assert record.partial  # type: ignore[union-attr]
    # beside the outputs of the whole set, not over them
    assert [folder.name for folder in (run.path / "evaluation").iterdir()] == ["dev-step-00000006-first1"]


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(torso: Torso, run: RunDirectory) -> None:
    for words in (("evaluate", "--checkpoint", "5"), ("evaluate", "--checkpoint", "newest"), ("digest", "--step", "5")):
        code, [line] = torso(words[0], run.path, *words[1:])
        assert (code, "one of 4, 6" in line) == (2, True)


@pytest.mark.parametrize("words", [("digest",), ("evaluate",), ("generate", "--prompt", "x")])
def test_a_damaged_checkpoint_is_named_by_every_command_that_passes_it_over(
    torso: Torso, run: RunDirectory, words: tuple[str, ...]
) -> None:
    damage(run, 6)
    code, [line] = torso(words[0], run.path, *words[1:])
    assert code == 0
    assert line.startswith("torso: warning: checkpoint step-00000006 is damaged: state.safetensors")
    assert "going back to the checkpoint of step 4" in line


def test_a_resume_replays_what_a_damaged_checkpoint_held(
    torso: Torso, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    before = checkpoints.load(run.checkpoints, 6).digest()
    damage(run, 6)
    code, lines = torso("resume", run.path)
    assert code == 0
    assert lines[-1] == "warning: 2 steps will be replayed"
    assert checkpoints.load(run.checkpoints, 6).digest() == before


def test_without_a_whole_checkpoint_a_resume_is_refused_in_one_line(torso: Torso, run: RunDirectory) -> None:
    damage(run, 4)
    damage(run, 6)
    code, [line] = torso("resume", run.path)
    assert code == 1
    assert all(word in line for word in ("no whole checkpoint", "step-00000004", "step-00000006"))


def test_keeping_fewer_than_two_checkpoints_is_refused(torso: Torso, run: RunDirectory, tmp_path: Path) -> None:
    for words in (("train", "--run-dir", tmp_path / "new"), ("resume", run.path)):
        code, [line] = torso(*words, "--keep-checkpoints", "1")
        assert (code, "keep_checkpoints is 1" in line) == (2, True)


@pytest.mark.parametrize("words", [("resume",), ("evaluate",), ("train", "--run-dir")])
def test_a_second_writer_is_refused_and_told_who_holds_the_run(
    torso: Torso, run: RunDirectory, settings: tuple[str | Path, ...], words: tuple[str, ...]
) -> None:
    rest = settings if words[0] == "train" else ()
    with run.lock():
        code, [line] = torso(*words, run.path, *rest)
    assert code == 2
    assert f"is being written by process {os.getpid()} on " in line


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("state.safetensors", "the checkpoint of step 8 could not be written"),
        ("metrics.jsonl", "metrics.jsonl could not be written"),
        ("outputs.jsonl", "outputs.jsonl could not be written"),
        ("report.html", "report.html could not be written"),
        ("run.json", "run.json could not be written"),
    ],
)
def test_a_full_disk_at_any_file_is_one_line_and_a_resume_goes_on(
    torso: Torso, run: RunDirectory, undisturbed: str, name: str, named: str
) -> None:
    write = files._write
    room = 1 if name == "metrics.jsonl" else 0

    def full(descriptor: int, data: bytes) -> None:
        nonlocal room
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name in path.name or name == path.name:
            room -= 1
            if room < 0:
                os.write(descriptor, data[: len(data) // 2])
                no_room()
        write(descriptor, data)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(files, "_write", full)
        code, [line] = torso("resume", run.path, "--epochs", "1", "--evaluate", "dev")
    assert (code, named in line, "No space left on device" in line) == (1, True, True)
    assert not list(run.path.rglob(".*"))
    epochs = () if run.state.epochs == 2 else ("--epochs", "1")
    assert torso("resume", run.path, *epochs) == (0, [])
    assert digest(run) == undisturbed


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of this size; yields a function that gives it another."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", path], check=True)  # type: ignore[func-returns-value]
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_run_on_a_disk_that_is_too_small_stops_and_goes_on_when_there_is_room(
    torso: Torso, settings: tuple[str | Path, ...], undisturbed: str, tmp_path: Path
) -> None:
    words = (*settings, "--epochs", "2", "--evaluate", "none", "--checkpoint-every-steps", "2")
    with small_disk(tmp_path / "disk", "160k") as resize:
        path = tmp_path / "disk" / "run"
        code, [line] = torso("train", *words, "--run-dir", path)
        assert code == 1
        assert "could not be written" in line
        assert "No space left on device" in line
        newest = checkpoints.load_newest(path / "checkpoints")
        assert newest is not None
        assert not newest.warnings
        assert 0 < newest.step < 2 * STEPS_PER_EPOCH
        resize("8m")
        assert torso("resume", path) == (0, [])
        assert digest(RunDirectory(path)) == undisturbed


@pytest.fixture
def server(model: Path) -> Iterator[Servers]:
    with serving(model, 1) as servers:
        yield servers


@pytest.mark.slow
def test_ranks_on_a_disk_that_is_too_small_end_with_one_line_and_are_not_started_again(
    settings: tuple[str | Path, ...], undisturbed: str, server: Servers, tmp_path: Path
) -> None:
    split = ("--strategy", "split", "--server", server.url, "--clients", "2", "--checkpoint-every-steps", "2")
    with small_disk(tmp_path / "disk", "160k") as resize:
        # the launcher's own files lie there too, as they do on a machine with one disk
        environment = os.environ | {"TMPDIR": str(tmp_path / "disk")}
        path = tmp_path / "disk" / "run"

        def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
            line = [sys.executable, "-m", "torso", *map(str, words)]
            return subprocess.run(line, env=environment, check=False, capture_output=True, text=True, timeout=200)

        done = command("train", *settings, *split, "--epochs", "2", "--evaluate", "none", "--run-dir", path)
        assert done.returncode == 1
        assert "restarting" not in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("No space left on device") == 1, done.stderr
        resize("8m")
        assert command("resume", path).returncode == 0
        assert json.loads(command("digest", path, "--json").stdout)["digest"] == undisturbed


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_under_the_messages_themselves_leaves_the_exit_code(
    settings: tuple[str | Path, ...], tmp_path: Path
) -> None:
    def code(*words: str | Path) -> int:
        line = [sys.executable, "-m", "torso", *map(str, words)]
        with open("/dev/full", "wb") as full:
            return subprocess.run(line, check=False, stderr=full, timeout=200).returncode

    assert code("digest", tmp_path) == 2
    assert code("train", *settings, "--evaluate", "none", "--run-dir", tmp_path / "run") == 1
