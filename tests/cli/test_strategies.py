"""Data-parallel runs as a user starts them: killed, resumed otherwise, under torchrun, on two machines."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.cli.conftest import SHAPE, Refuse, make_model
from tests.cli.jobs import background, digest, serving, steps, torso, wait_for

from torso import faults
from torso.cli import resume, train
from torso.cli.assembly import Assembly
from torso.cli.main import main
from torso.cli.parsing import parse
from torso.config import RunConfig
from torso.errors import ConfigError, RunDirectoryError
from torso.parallel.ports import free_ports
from torso.parallel.reductions import check_reductions
from torso.records import EvaluationRecord
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import MetricsLog, RunDirectory

Words = tuple[str, ...]
TWO_NODES = Path(__file__).parent / "two_nodes.sh"
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path], tiny_data: str) -> Words:
    """Ten examples: steps of four micro-batches, then one of one, which is fewer than there are ranks."""
    batches = ("--max-examples", "10", "--global-batch-size", "8", "--micro-batch-size", "2", "--threads", "1")
    saves = ("--checkpoint-every-steps", "3", "--evaluate", "none", "--dropout", "0.1")
    shape = dataclasses.replace(SHAPE, n_positions=96)
    model = make_model(tmp_path_factory.mktemp("models") / "tiny", train_small, seed=0, shape=shape)
    return ("--model", str(model), "--data", tiny_data, "--adapter", "none", *batches, *saves)


@pytest.fixture(scope="module")
def single(settings: Words, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests of an undisturbed run in one process, by epoch."""
    found = {}
    for epochs in (1, 4):
        run = tmp_path_factory.mktemp("single") / "run"
        assert main(["train", *settings, "--epochs", str(epochs), "--run-dir", str(run)]) == 0
        found[epochs] = digest(run)
    return found


@pytest.mark.slow
def test_killed_ranks_start_again_from_the_checkpoint_with_the_same_bits(
    settings: Words, single: dict[int, str], tmp_path: Path
) -> None:
    plan = ["kill client-1 wave.before@5", "kill client-0 checkpoint.state@6", "kill client-0 update.after@8"]
    faults.write_plan(tmp_path / "faults", plan)
    run, log = tmp_path / "run", tmp_path / "log"
    words = (*settings, "--epochs", "4", "--strategy", "fsdp", "--nproc", "2", "--deterministic", "--evaluate", "dev")
    with background(log, "train", *words, "--run-dir", run, plan=tmp_path / "faults") as process:
        assert process.wait(200) == 0, log.read_text()
    assert faults.hits(tmp_path / "faults") == [1, 2, 3]
    assert (digest(run), steps(run)) == (single[4], 8)
    assert any(isinstance(r, EvaluationRecord) and r.adapted for r in MetricsLog(run).read())


@pytest.mark.slow
def test_a_run_goes_on_under_another_strategy_split_included(tiny_model: Path, tiny_data: str, tmp_path: Path) -> None:
    adapter = ("--adapter", "dora", "--lora-rank", "2", "--dropout", "0.1", "--evaluate", "none", "--threads", "1")
    words = ("--model", str(tiny_model), "--data", tiny_data, *adapter, "--max-examples", "10")
    whole, run, port = tmp_path / "whole", tmp_path / "run", str(free_ports(1))
    assert main(["train", *words, "--epochs", "3", "--run-dir", str(whole)]) == 0
    split = ("--strategy", "split", "--server", f"http://127.0.0.1:{port}")
    with serving(tiny_model, int(port), tmp_path / "log", workers=1):
        torso("train", *words, *split, "--clients", "2", "--run-dir", run)
        torso("resume", run, "--epochs", "1", "--strategy", "single", "--clients", "1")
        torso("resume", run, "--epochs", "1", *split)
    assert digest(run) == digest(whole)


def torchrun(ranks: int, *words: str | Path, plan: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)} | ({} if plan is None else {faults.VARIABLE: str(plan)})
    return subprocess.run(
        [*command, "-m", "torso", *map(str, words)], env=environment, capture_output=True, text=True, timeout=200
    )


@pytest.mark.slow
def test_the_users_own_torchrun_trains_and_resumes(settings: Words, single: dict[int, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = torchrun(3, "train", *settings, "--strategy", "ddp", "--deterministic", "--run-dir", run)
    assert (done.returncode, digest(run)) == (0, single[1]), done.stderr
    torso("resume", run, "--epochs", "3", "--strategy", "single")
    assert digest(run) == single[4]


@pytest.mark.slow
def test_a_strategy_that_starts_its_own_ranks_is_told_once_under_torchrun(settings: Words, tmp_path: Path) -> None:
    done = torchrun(2, "train", *settings, "--strategy", "single", "--run-dir", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.count("torso: error: strategy is single, and this process is a rank of torchrun's") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_one_rank_alone_lacks_is_told_by_that_rank(settings: Words, tmp_path: Path) -> None:
    run = tmp_path / "run"
    elsewhere = "import os, sys; os.environ['LOCAL_RANK'] == '1' and os.chdir(sys.argv[1])"
    script = tmp_path / "rank.py"
    script.write_text(f"{elsewhere}\nfrom torso.cli.main import main\nmain(sys.argv[2:])")
    words = list(map(str, settings))
    words[words.index("--model") + 1] = os.path.relpath(words[words.index("--model") + 1])
    away = tmp_path / "away"
    away.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, str(away), "train", *words, "--strategy", "ddp", "--run-dir", str(run)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode != 0
    assert "torso: error: " in done.stderr
    assert "/tiny' is neither a folder nor one of" in done.stderr


@pytest.mark.parametrize("command", ["train", "resume"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_ranks_started_again_in_another_number_go_on_only_where_that_changes_no_bits(
    command: str, deterministic: bool, settings: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    words = [*settings, "--strategy", "ddp", "--nproc", "3", *(["--deterministic"] if deterministic else [])]
    assembly = Assembly(parse(RunConfig, "train", words).checked())
    assembly.prepare_process()
    run = RunDirectory.create(tmp_path / "run", assembly.config.to_toml(), 1)
    checkpoints.save(run.checkpoints, 0, {"optimizer_step": torch.tensor([0])}, assembly.identity)
    prepare = {"train": train._prepare_for, "resume": resume._prepare_for}[command]
    asked = {"train": ["--run-dir", str(run.path)], "resume": [str(run.path)]}[command]
    if deterministic:
        assert prepare(2, asked)[0].nproc == 2
        return
    with pytest.raises(RunDirectoryError, match="addition: ddp on 2 ranks here, ddp on 3 ranks there"):
        prepare(2, asked)


@pytest.mark.slow
def test_two_machines_train_together_and_one_of_them_has_the_run(
    settings: Words, single: dict[int, str], tmp_path: Path
) -> None:
    run = tmp_path / "nodes" / "run"
    words = [str(TWO_NODES), str(run), *settings, "--strategy", "hsdp", "--deterministic"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHON": sys.executable}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert digest(run) == single[1]


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter_single", "all_gather_single", "all_to_all_single"])
def test_a_backend_that_adds_wrongly_is_refused(name: str, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reductions(torch.device("cpu"))
    monkeypatch.setattr(dist, name, lambda first, *rest, **options: first.fill_(7.0))
    with pytest.raises(ConfigError, match="gives 7 where"):
        check_reductions(torch.device("cpu"))


def test_settings_that_a_strategy_cannot_have_are_refused(train: Refuse) -> None:
    assert "shard_size is 3 with 4 ranks" in train("--strategy", "hsdp", "--nproc", "4", "--shard-size", "3")
    assert "shard_size is 2 with strategy fsdp" in train("--strategy", "fsdp", "--shard-size", "2")
    assert "fp16 with strategy split" in train("--strategy", "split", "--dtype", "fp16")
    assert "compile is given with strategy split" in train("--strategy", "split", "--compile")
    assert "nproc is 0" in train("--strategy", "ddp", "--nproc", "0")


def test_the_order_of_addition_belongs_to_the_arithmetic(
    settings: Words, refuse: Refuse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", *settings, "--run-dir", str(run)]) == 0
    capsys.readouterr()
    line = refuse("resume", run, "--epochs", "1", "--strategy", "fsdp")
    assert "addition: fsdp on 2 ranks here, in order there" in line


def test_compiling_without_a_compiler_is_refused_before_ranks_start(
    train: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    line = train("--strategy", "ddp", "--compile")
    assert "no C++ compiler 'no-such-compiler'" in line


@pytest.mark.slow
def test_ctrl_c_saves_and_a_rank_killed_under_torchrun_takes_the_others_with_it(
    settings: Words, tmp_path: Path
) -> None:
    whole, run, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    words = (*settings, "--epochs", "30")
    assert main(["train", *words, "--run-dir", str(whole)]) == 0
    with background(log, "train", *words, "--strategy", "ddp", "--deterministic", "--run-dir", run) as process:
        wait_for(lambda: steps(run) >= 2, process, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
    assert "stopped; the state of step" in log.read_text()
    stopped_at = steps(run)
    faults.write_plan(tmp_path / "faults", [f"kill client-1 wave.before@{stopped_at + 5}"])
    killed = torchrun(2, "resume", run, "--strategy", "fsdp", plan=tmp_path / "faults")
    assert (killed.returncode, faults.hits(tmp_path / "faults")) == (1, [1])
    assert "torso: " in killed.stderr
    assert steps(run) < 60
    torso("resume", run, "--strategy", "single")
    assert (digest(run), steps(run)) == (digest(whole), 60)
