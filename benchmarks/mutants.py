"""Do the tests notice? Each mutant changes one place of the sources; the tests named with it must then fail.

    python benchmarks/mutants.py                       all of benchmarks/mutants/*.toml
    python benchmarks/mutants.py server training       those of these files
    python benchmarks/mutants.py training --name skip  those whose name contains a word

A mutant is a table `[[mutant]]` with `name`, `file`, `old` (found exactly once in the file), `new`, and `tests`
(what pytest is given). The sources are copied once; the checkout is never touched. Ends with code 1 when a mutant
survives, 2 when one no longer fits the sources.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = Path(__file__).parent / "mutants"
LIMIT_S = 600


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change that the tests must notice."""

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def changed(self, text: str) -> str:
        """The file's text with the change; raises ValueError when it does not fit."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.room}: {self.name!r}: `old` stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def read(rooms: list[str], word: str) -> list[Mutant]:
    """The mutants of these rooms (of all, where none is named) whose name contains the word."""
    paths = [MUTANTS / f"{room}.toml" for room in rooms] or sorted(MUTANTS.glob("*.toml"))
    found = [
        Mutant(room=path.stem, **table)
        for path in paths
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]
    return [mutant for mutant in found if word in mutant.name]


def is_caught(mutant: Mutant, copy: Path) -> bool:
    """Whether the mutant's tests fail in the copy with the change in it; the copy is as before afterwards."""
    path = copy / mutant.file
    before = path.read_text(encoding="utf-8")
    path.write_text(mutant.changed(before), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(before, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise ValueError(f"{mutant.room}: {mutant.name!r}: pytest ended with {done.returncode}\n{done.stdout.decode()}")
    return done.returncode == 1


def main() -> int:
    """Try them all; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*")
    parser.add_argument("--name", default="", help="only mutants whose name contains this")
    options = parser.parse_args()
    mutants = read(options.rooms, options.name)
    survived = []
    with tempfile.TemporaryDirectory(prefix="torso-mutants-") as folder:
        copy = Path(folder) / "torso"
        kept_out = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=kept_out)
        for mutant in mutants:
            started = time.monotonic()
            try:
                caught = is_caught(mutant, copy)
            except ValueError as error:
                print(error, file=sys.stderr)
                return 2
            verdict = "caught  " if caught else "SURVIVED"
            print(f"{verdict}  {time.monotonic() - started:5.1f} s  {mutant.room}: {mutant.name}", flush=True)
            survived += [] if caught else [mutant]
    print(f"{len(mutants) - len(survived)} of {len(mutants)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
