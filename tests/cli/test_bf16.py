from __future__ import annotations

from pathlib import Path

import pytest
from tests.split.harness import serving

from torso.cli.main import main
from torso.cli.processes import digest


@pytest.mark.slow
def test_a_split_run_in_bf16_gives_the_whole_runs_bits(tiny_model: Path, tiny_data: str, tmp_path: Path) -> None:
    words = ["--model", str(tiny_model), "--data", tiny_data, "--dtype", "bf16", "--threads", "1", "--evaluate", "none"]
    words += ["--adapter", "dora", "--lora-rank", "2", "--dropout", "0.1", "--global-batch-size", "8"]
    assert main(["train", *words, "--run-dir", str(tmp_path / "whole")]) == 0
    with serving(tiny_model, 2) as servers:
        split = ["--strategy", "split", "--clients", "2", "--server", servers.url, "--run-dir", str(tmp_path / "split")]
        assert main(["train", *words, *split]) == 0
    assert digest(tmp_path / "split")["digest"] == digest(tmp_path / "whole")["digest"]
