"""The official E2E zip, fetched once, its checksum verified, into a cache folder."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx

from torso.errors import DataError

E2E_URL = "https://github.com/tuetschek/e2e-dataset/releases/download/v1.0.0/e2e-dataset.zip"
E2E_SHA256 = "1261064c01907af27e8cc39e0a29a81541f6ab69208c1cbfc1be95afbb49dfac"
_MAX_BYTES = 64 << 20

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    """One line for people, apart from what a command prints."""
    print(text, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """$TORSO_CACHE, else $XDG_CACHE_HOME/torso, else ~/.cache/torso."""
    if named := os.environ.get("TORSO_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torso"


def official_e2e(
    say: Say = say_on_stderr, *, url: str = E2E_URL, sha256: str = E2E_SHA256, cache: Path | None = None
) -> Path:
    """The path of the official zip in the cache; it is downloaded, which `say` is told, where it is not
    there yet.

    DataError when it cannot be had or has another checksum; then nothing new stays in the cache.
    """
    target = (cache or cache_folder()) / "e2e-dataset.zip"
    if target.is_file() and _digest(target) == sha256:
        return target
    damaged = " (the copy in the cache is damaged)" if target.is_file() else ""
    say(f"Downloading E2E NLG, 1.5 MB, CC BY-SA 4.0, from {url} to {target}{damaged}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as folder:
            part = Path(folder) / target.name
            _fetch(url, part)
            _verify(part, url, sha256)
            os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}", "Set TORSO_CACHE to a folder that can.") from error
    return target


def _fetch(url: str, part: Path) -> None:
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=30.0) as answer, part.open("wb") as file:
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                file.write(chunk)
                if file.tell() > _MAX_BYTES:
                    raise DataError(f"{url} answered with more than {_MAX_BYTES >> 20} MB")
            file.flush()
            os.fsync(file.fileno())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(
            f"{url} cannot be downloaded: {error or type(error).__name__}",
            "Without internet give a copy: --data e2e:PATH of e2e-dataset.zip, its folder, or CSV files.",
        ) from error


def _verify(part: Path, url: str, sha256: str) -> None:
    digest = _digest(part)
    if digest != sha256:
        raise DataError(
            f"what {url} answered has SHA-256 {digest}, expected {sha256}",
            "It was not kept. Try again later.",
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
