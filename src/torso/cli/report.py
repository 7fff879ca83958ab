"""`torso report RUN_DIR`: one HTML page with tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.cli.parsing import parse
from torso.report.page import write_page


@dataclass(frozen=True)
class ReportArguments:
    """Write report.html into the run directory."""

    run_dir: Path
    """The run."""


def main(arguments: Sequence[str]) -> int:
    """Write the page and say where it is."""
    print(write_page(parse(ReportArguments, "report", arguments).run_dir))
    return 0
