"""What `torso verify strategies` does: single against DDP, FSDP and HSDP, adapters and all weights."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torso.cli import processes
from torso.cli.comparison import compare
from torso.cli.promises import Bench, Row, remote, row

KINDS = ("none", "dora")
SIZES = (1, 2, 4)
FAST_TOLERANCE = 1e-4
"""Largest difference of a step's loss per target token in the fast mode."""


def strategies(bench: Bench) -> Iterator[Row]:
    """Equal bits with --deterministic at each number of ranks, a tolerance without, and a change in the middle."""
    for kind in KINDS:
        bench.whole(kind, 1)
        for name, ranks in _groups(bench.largest):
            yield _row(bench, kind, name, ranks, deterministic=True)
        for name, ranks in _groups(bench.largest):
            if ranks > 1:
                yield _row(bench, kind, name, ranks, deterministic=False)
        yield _changed(bench, kind)
    yield _to_split(bench)


def _groups(largest: int) -> list[tuple[str, int]]:
    """HSDP needs four ranks to be another thing than FSDP."""
    sizes = [size for size in SIZES if size <= largest]
    return [(name, size) for name in ("ddp", "fsdp") for size in sizes] + ([("hsdp", 4)] if largest >= 4 else [])


def _row(bench: Bench, kind: str, name: str, ranks: int, deterministic: bool) -> Row:
    started, mode = time.monotonic(), "deterministic" if deterministic else "fast"
    words = ["--strategy", name, "--nproc", str(ranks), *(["--deterministic"] if deterministic else [])]
    run = bench.train(f"{name}-{kind}-{ranks}-{mode}", kind, 1, *words)
    what = f"{_what(kind)}, {name} on {ranks}, {mode}, against single"
    found = compare(bench.whole(kind, 1), run)
    return row("strategies", what, found, started, None if deterministic else FAST_TOLERANCE)


def _changed(bench: Bench, kind: str) -> Row:
    """An epoch under one strategy, another under another."""
    started, most = time.monotonic(), max(size for size in SIZES if size <= bench.largest)
    words = ["--strategy", "ddp", "--nproc", str(most), "--deterministic"]
    run = bench.train(f"changed-{kind}", kind, 1, *words)
    then = ["--strategy", "fsdp", "--nproc", str(min(2, most))]
    processes.run("resume", run, "--epochs", "1", *then, log=bench.folder / f"changed-{kind}.log")
    what = f"{_what(kind)}, ddp on {most}, then fsdp on {min(2, most)}, against single"
    return row("strategies", what, compare(bench.whole(kind, 2), run), started)


def _to_split(bench: Bench) -> Row:
    """An epoch on two ranks, another through a server."""
    started, name, kind = time.monotonic(), "to-split", KINDS[-1]
    run = bench.train(name, kind, 1, "--strategy", "ddp", "--nproc", "2", "--deterministic")
    with bench.server("server-strategies", 1) as url:
        processes.run("resume", run, "--epochs", "1", *remote(url, 2), log=bench.folder / f"{name}.log")
    what = f"{kind}, ddp on 2, then split with 2 clients, against single"
    return row("strategies", what, compare(bench.whole(kind, 2), run), started)


def _what(kind: str) -> str:
    return "all weights" if kind == "none" else kind
