from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torso.report.comparison.findings import findings
from torso.report.comparison.page import comparison_page
from torso.report.comparison.paper import ratio_to_single
from torso.report.comparison.read import read_comparison
from torso.report.comparison.tables import as_markdown, as_text, cost_table, group_table
from torso.report.comparison.write import write_comparison

KEYS = ("loss", "grad_norm", "time", "memory", "throughput")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, make_comparison: Callable[..., Path]) -> Path:
    """All five strategies, written out once."""
    path = make_comparison(tmp_path_factory.mktemp("comparison") / "a")
    write_comparison(path)
    return path


def test_five_plots_are_drawn(written: Path) -> None:
    assert sorted(path.name for path in (written / "plots").iterdir()) == sorted(f"mini-2-{key}.png" for key in KEYS)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (written / "plots").iterdir())


def test_the_document_holds_totals_epochs_and_the_papers_values(written: Path) -> None:
    document: dict[str, Any] = json.loads((written / "compare.json").read_text())
    by_strategy = {trial["strategy"]: trial for trial in document["trials"]}
    assert by_strategy["ddp"]["totals"]["seconds"] == pytest.approx(0.6 * 7)
    assert by_strategy["ddp"]["totals"]["memory_sum_megabytes"] == 2000.0
    assert [epoch["epoch"] for epoch in by_strategy["split"]["epochs"]] == [1, 2]
    assert document["losses"]["agree"] is True
    assert document["paper"]["fsdp"]["memory_megabytes"] == 3816.0


def test_the_csv_has_a_row_a_quantity_and_a_column_a_strategy(written: Path) -> None:
    rows = list(csv.DictReader((written / "table.csv").read_text(encoding="utf-8").splitlines()))
    times = next(row for row in rows if row["quantity"] == "seconds")
    assert float(times["single"]) == pytest.approx(7.0)
    assert float(times["split"]) == pytest.approx(9.8)
    assert list(times)[4:] == ["single", "ddp", "fsdp", "hsdp", "split"]


def test_the_table_has_the_papers_rows(written: Path) -> None:
    text = as_text(group_table(read_comparison(written).groups[0]))
    for title in ("Average loss", "Gradient norm, mean", "Total training time", "Peak memory", "Throughput"):
        assert title in text
    lengths = {len(line) for line in text.splitlines()}
    assert len(lengths) == 1


def test_findings_name_the_fastest_the_least_memory_and_the_papers_ratios(written: Path) -> None:
    text = " ".join(findings(read_comparison(written)))
    assert "ddp was fastest" in text
    assert "The losses agree" in text
    assert "least split 500 MB, most ddp 1,000 MB" in text
    assert "ddp took 0.63 times single's time and 1.12 times its memory (here 0.60 and 1.11)" in text
    assert "must not be read as figures of GPUs" in text
    assert "single leaves the other cores idle" in text


def test_figures_of_gpus_carry_no_warning_of_cpus(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    text = " ".join(findings(read_comparison(make_comparison(tmp_path / "a", on_gpu=True))))
    assert "GPUs" not in text.replace("two T4 GPUs", "")


def test_findings_say_that_losses_do_not_agree(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    text = " ".join(findings(read_comparison(make_comparison(tmp_path / "a", shifts={"fsdp": 1e-3}))))
    assert "do NOT agree" in text


def test_what_failed_or_does_not_apply_stands_in_the_table_with_its_reason(
    tmp_path: Path, make_comparison: Callable[..., Path]
) -> None:
    path = make_comparison(tmp_path / "a", states={"split": "not applicable", "fsdp": "failed"})
    comparison = read_comparison(path)
    loss = next(row for row in group_table(comparison.groups[0])[1] if row[0].startswith("Average loss"))
    assert loss[3] == "failed"
    assert loss[5] == "n/a"
    assert "mini-split-2 is not applicable: it has no <adapter>" in " ".join(findings(comparison))
    page = comparison_page(comparison)
    assert "<adapter>" not in page
    assert page.count("<svg") == 5


def test_several_models_and_sizes_show_how_cost_grows(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    path = make_comparison(tmp_path / "a", ["single", "ddp"], models=("mini", "b"), sizes=(1, 2))
    comparison = read_comparison(path)
    assert [group.name for group in comparison.groups] == ["mini-1", "mini-2", "b-1", "b-2"]
    _, rows = cost_table(comparison)
    assert [row[:4] for row in rows][:3] == [
        ["single", "mini", "3,550,000", "1"],
        ["single", "b", "7,100,000", "1"],
        ["ddp", "mini", "3,550,000", "1"],
    ]
    text = " ".join(findings(comparison))
    assert "ddp on mini, from 1 to 2 processes" in text
    assert "single, from mini to b" in text


def test_a_comparison_in_which_nothing_is_done_can_be_drawn(
    tmp_path: Path, make_comparison: Callable[..., Path]
) -> None:
    comparison = read_comparison(make_comparison(tmp_path / "a", ["ddp"], states={"ddp": "failed"}))
    assert "failed" in comparison_page(comparison)


def test_hsdp_with_one_copy_is_said_to_be_fsdp(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    text = " ".join(findings(read_comparison(make_comparison(tmp_path / "a", ["fsdp", "hsdp"], sizes=(2, 4)))))
    assert "mini-hsdp-2: one copy of the model" in text
    assert "mini-hsdp-4" not in text


def test_a_busy_machine_is_named(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    path = make_comparison(tmp_path / "a", ["single"])
    ended = path / "trials/mini-single-1.json"
    ended.write_text(json.dumps(json.loads(ended.read_text()) | {"others_cores": 0.75}))
    assert "mini-single-1 0.75" in " ".join(findings(read_comparison(path)))


def test_bars_in_a_cell_do_not_break_markdown() -> None:
    assert as_markdown((["a", "b"], [["x|y", "1"]])).splitlines()[2] == "| x\\|y | 1 |"


def test_the_papers_ratios_are_to_its_single_device() -> None:
    assert ratio_to_single("ddp", "seconds") == pytest.approx(1324 / 2102)
    assert ratio_to_single("split", "seconds") is None
