"""Fetches what METEOR needs, WordNet 3.0 and Punkt's English parameters, into NLTK's folder of this environment.

Part of `make setup`; standard library only, no root. Each source is tried in turn, and whatever comes is used only when
its SHA-256 is the expected one:
- WordNet 3.0 from Debian's package wordnet-base (`apt-get download`, else the archive of Debian), which lacks the list
  of lexicographer files that NLTK insists on; that list is part of WordNet's documentation, lexnames(5WN);
- Punkt from the wheel of llama-index-core on PyPI, which carries NLTK's own data.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

WORDNET_URL = "https://deb.debian.org/debian/pool/main/w/wordnet/wordnet-base_3.0-37_all.deb"
WORDNET_FILES = (
    {f"{kind}.{pos}" for kind in ("index", "data") for pos in ("noun", "verb", "adj", "adv")}
    | {f"{pos}.exc" for pos in ("noun", "verb", "adj", "adv")}
    | {"cntlist.rev"}
)
WORDNET_SHA256 = "bde092e1517a93e7b755fbeb57bc77278e3d3c27ac88bf8ab902364f22468114"
PUNKT_WHEEL = "llama-index-core==0.14.25"
PUNKT_PREFIX = "llama_index/core/_static/nltk_cache/tokenizers/punkt_tab/english/"
PUNKT_SHA256 = "031e6315fa80d5de436dca97f0948cdfcd28aa0d98bf529e62bfdb511f8c2d37"
NOUNS = (
    "Tops act animal artifact attribute body cognition communication event feeling food group location motive object "
    "person phenomenon plant possession process quantity relation shape state substance time"
)
VERBS = (
    "body change cognition communication competition consumption contact creation emotion motion perception possession "
    "social stative weather"
)

Files = dict[str, bytes]


def main() -> int:
    """Fetch what is missing; returns the exit code."""
    folder = Path(sys.prefix) / "nltk_data"
    wanted: list[tuple[str, Path, list[Callable[[], Files]], str]] = [
        ("WordNet 3.0", folder / "corpora" / "wordnet", [wordnet_by_apt, wordnet_by_url], WORDNET_SHA256),
        ("Punkt (English)", folder / "tokenizers" / "punkt_tab" / "english", [punkt_by_pip], PUNKT_SHA256),
    ]
    return max(provide(*item) for item in wanted)


def provide(name: str, target: Path, sources: list[Callable[[], Files]], expected: str) -> int:
    """Put the files into `target` unless they are there; returns 1 when no source gave the right ones."""
    if target.is_dir() and digest({p.name: p.read_bytes() for p in target.iterdir()}) == expected:
        return 0
    failures = []
    for source in sources:
        try:
            files = source()
        except (OSError, subprocess.SubprocessError, KeyError, ValueError, tarfile.TarError) as error:
            failures.append(f"{source.__name__}: {error}")
            continue
        if digest(files) == expected:
            write(target, files)
            print(f"{name}: {len(files)} files in {target}")
            return 0
        failures.append(f"{source.__name__}: SHA-256 is {digest(files)}, expected {expected}")
    print(f"{name} could not be fetched; METEOR will not be computed. Tried: {'; '.join(failures)}", file=sys.stderr)
    return 1


def write(target: Path, files: Files) -> None:
    """All files, then the folder under its own name, so that half of them are never found."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        part = Path(temporary) / "part"
        part.mkdir()
        for name, data in files.items():
            (part / name).write_bytes(data)
        if target.exists():
            target.rename(Path(temporary) / "old")
        part.rename(target)


def digest(files: Files) -> str:
    """SHA-256 over names and contents, sorted."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name} {hashlib.sha256(files[name]).hexdigest()}\n".encode())
    return total.hexdigest()


def wordnet_by_apt() -> Files:
    """From the system's package source."""
    with tempfile.TemporaryDirectory() as folder:
        # apt drops to a user of its own, who must be able to write here
        os.chmod(folder, 0o777)
        run(["apt-get", "download", "-q", "wordnet-base"], folder)
        (package,) = Path(folder).glob("wordnet-base*.deb")
        return unpack_wordnet(package.read_bytes())


def wordnet_by_url() -> Files:
    """From Debian's archive, where there is no apt."""
    with urllib.request.urlopen(WORDNET_URL, timeout=60) as answer:
        return unpack_wordnet(answer.read())


def punkt_by_pip() -> Files:
    """From a wheel that carries it."""
    with tempfile.TemporaryDirectory() as folder:
        run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", PUNKT_WHEEL],
            folder,
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith(PUNKT_PREFIX)]
            return {name.removeprefix(PUNKT_PREFIX): archive.read(name) for name in names}


def run(command: list[str], folder: str) -> None:
    """Run in `folder`; what it says is shown only when it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise OSError(f"{command[0]} ended with {done.returncode}: {lines[-1] if lines else 'no message'}")


def unpack_wordnet(package: bytes) -> Files:
    """The dictionary files in a .deb (an ar archive with data.tar.xz), and lexnames."""
    offset = 8
    while offset < len(package):
        name = package[offset : offset + 16].decode().strip().rstrip("/")
        size = int(package[offset + 48 : offset + 58])
        start = offset + 60
        if name == "data.tar.xz":
            content = lzma.decompress(package[start : start + size])
            return read_dictionary(content) | {"lexnames": lexnames()}
        offset = start + size + size % 2
    raise ValueError("no data.tar.xz in the package")


def read_dictionary(content: bytes) -> Files:
    """The files that NLTK reads, by name. It asks for index.sense too, but METEOR's use never opens it."""
    files: Files = {"index.sense": b""}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            name = Path(member.name).name
            opened = archive.extractfile(member) if name in WORDNET_FILES and "/share/wordnet/" in member.name else None
            if opened is not None:
                files[name] = opened.read()
    return files


def lexnames() -> bytes:
    """WordNet's table of lexicographer files: number, name, part of speech."""
    names = [("adj.all", 3), ("adj.pert", 3), ("adv.all", 4)]
    names += [(f"noun.{name}", 1) for name in NOUNS.split()]
    names += [(f"verb.{name}", 2) for name in VERBS.split()]
    names += [("adj.ppl", 3)]
    return "".join(f"{number:02d}\t{name}\t{pos}\n" for number, (name, pos) in enumerate(names)).encode()


if __name__ == "__main__":
    sys.exit(main())
