"""`torso report DIR`: one HTML page with tables and plots, of a run or of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse
from torso.report.comparison.read import is_comparison
from torso.report.comparison.write import PAGE, write_comparison
from torso.report.page import write_page


@dataclass(frozen=True)
class ReportArguments:
    """Write report.html into the directory; of a comparison its tables and plots too."""

    run_dir: Path
    """The run, or the --out of a comparison."""


def main(arguments: Sequence[str]) -> int:
    """Write the page and say where it is."""
    folder = parse(ReportArguments, "report", arguments).run_dir
    if is_comparison(folder):
        write_comparison(folder)
        print(folder / PAGE)
    else:
        print(write_page(folder))
    return 0
