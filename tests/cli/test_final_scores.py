"""What happens by itself when training ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import SHAPE, make_model
from tests.cli.jobs import SETTINGS, torso

from torso.cli.main import main
from torso.records import EvaluationRecord
from torso.training import checkpoint as checkpoints
from torso.training.run_directory import MetricsLog

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path], tiny_data: str) -> list[str]:
    """A model with room for decoded outputs, and three epochs."""
    shape = dataclasses.replace(SHAPE, n_positions=128)
    model = make_model(tmp_path_factory.mktemp("models") / "roomy", train_small, seed=0, shape=shape)
    return ["train", "--model", str(model), "--data", tiny_data, *SETTINGS, "--threads", "1", "--epochs", "3"]


def evaluations(run: Path) -> dict[int, bool]:
    """Steps that were measured on dev, and whether they were decoded."""
    records = [r for r in MetricsLog(run).read(EvaluationRecord) if isinstance(r, EvaluationRecord)]
    assert all(record.subset == "dev" and record.adapted for record in records)
    return {record.step: bool(record.scores) for record in records}


def test_every_epoch_is_measured_on_dev_and_the_best_and_the_last_are_decoded(words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    torso(*words, "--run-dir", run)
    assert set(evaluations(run)) == {12, 24, 36}
    assert evaluations(run)[36]
    page = (run / "report.html").read_text()
    assert "Epochs on dev" in page
    assert "The best is chosen by perplexity on dev" in page
    torso("resume", run, "--epochs", "1")
    assert set(evaluations(run)) == {12, 24, 36, 48}
    assert checkpoints.steps(run / "checkpoints") == [12, 24, 36, 48]


def test_a_named_score_has_every_epoch_decoded_and_chooses_the_best(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    torso(*words, "--run-dir", run, "--best-by", "hf_bleu", "--keep-epochs", "2")
    assert evaluations(run) == {24: True, 36: True}
    assert main(["evaluate", str(run), "--subset", "dev", "--checkpoint", "best", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["step"] == 36  # all are 0: of equals the newest
