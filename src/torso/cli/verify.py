"""`torso verify [split] [resume] [strategies] [survive]`: the promises, tested on this machine with real processes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from torso.cli.parsing import parse
from torso.cli.processes import make_out
from torso.errors import ConfigError
from torso.records import finite

if TYPE_CHECKING:
    from torso.cli.promises import Bench, Row


@dataclass(frozen=True)
class VerifyArguments:
    """Train small runs in different ways and compare their bits: split and whole, stopped and not."""

    promises: tyro.conf.Positional[tuple[str, ...]] = ()
    """split, resume, strategies, survive; default: the first two."""
    model: str = "mini"
    """As for `torso train`."""
    init: str = "pretrained"
    """As for `torso train`."""
    tokenizer: str | None = None
    """As for `torso train`."""
    data: str = "demo"
    """As for `torso train`."""
    max_examples: int = 48
    """Training examples of each run; a step takes eight."""
    most: int = 3
    """Of split: up to this many clients and workers."""
    largest: int = 4
    """Of strategies: up to this many ranks."""
    kills: int = 10
    """Of survive: how many times something is killed."""
    seed: int = 0
    """Of survive: which processes, and when."""
    out: Path | None = None
    """Folder to keep the runs in. Default: a temporary one."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 when a promise fails."""
    options = parse(VerifyArguments, "verify", arguments)
    from torso.cli.promises import PROMISES
    from torso.cli.strategy_promise import strategies

    promises = PROMISES | {"strategies": strategies}
    chosen = options.promises or ("split", "resume")
    unknown = [name for name in chosen if name not in promises]
    if unknown:
        raise ConfigError(f"no promise is called {unknown[0]!r}", f"Choose among {', '.join(promises)}.")
    if min(options.most, options.largest, options.kills, options.max_examples) < 1:
        raise ConfigError("most, largest, kills and max_examples must be 1 or more", "Give larger numbers.")
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torso-verify-")))
        bench = _bench(options, make_out(folder))
        for row in itertools.chain.from_iterable(promises[name](bench) for name in chosen):
            rows.append(row)
            print(_line(row), file=sys.stderr if options.json else sys.stdout, flush=True)
    return _conclude(rows, options.json)


def _conclude(rows: list[Row], as_json: bool) -> int:
    failed = sum(not row.holds for row in rows)
    if as_json:
        document = {"passed": failed == 0, "rows": [finite(vars(row)) for row in rows]}
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        print(f"{len(rows) - failed} of {len(rows)} comparisons hold, {sum(row.equal for row in rows)} with equal bits")
    return 1 if failed else 0


def _bench(options: VerifyArguments, folder: Path) -> Bench:
    from torso.cli.promises import Bench

    names = [one.name for one in dataclasses.fields(Bench) if one.name != "folder"]
    return Bench(folder=folder, **{name: getattr(options, name) for name in names})


def _line(row: Row) -> str:
    word = "PASS" if row.holds else "FAIL"
    return f"{word}  {row.promise:10s} {row.compared:58s} {row.outcome:12s} {row.seconds:6.1f} s"
