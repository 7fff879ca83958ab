"""Readers of the packages that `mini` learns from: an unpacked package in, documents out.

A document is a list of paragraphs of plain English; a reader yields them in the package's own order.
"""

from __future__ import annotations

import html
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

Document = list[str]
WORDNET_KINDS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
GLOSSES_PER_DOCUMENT = 32
SHORTEST_FACT = 40
SHORTEST_HTML_PARAGRAPH = 80
PLAIN = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2026": "...", "\xa0": " "}
)


def plain(text: str) -> str:
    """One paragraph on one line, with typewriter quotes and single spaces."""
    text = text.translate(PLAIN).replace("\u2014", " - ")
    text = re.sub(r"[\x00-\x1f\x7f]", " ", text)
    text = re.sub(r"\s+([,.;:?!])", r"\1", text)
    return re.sub(r"\s+", " ", text).strip()


def untagged(markup: str) -> str:
    """The text of HTML or OSIS: inline tags vanish, block tags become a space."""
    markup = re.sub(r"<note\b.*?</note>|<(script|style)\b.*?</\1>", "", markup, flags=re.S)
    markup = re.sub(r"</?(w|q|hi|transChange|divineName|reference|b|i|em|code|a|span)\b[^>]*>", "", markup)
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))


def text_paragraphs(text: str) -> Document:
    return [plain(paragraph) for paragraph in re.split(r"\n\s*\n", text.replace("\r", ""))]


def text_files(folder: Path, pattern: str) -> Iterator[Document]:
    """One document a file whose paragraphs are parted by empty lines."""
    for path in sorted(folder.glob(pattern)):
        yield text_paragraphs(path.read_text(encoding="utf-8", errors="replace"))


def addresses(folder: Path) -> Iterator[Document]:
    yield from text_files(folder, "package/data/[0-9]*.txt")


def moby_dick(folder: Path) -> Iterator[Document]:
    yield from text_files(folder, "package/data/chapter_*.txt")


def html_pages(folder: Path) -> Iterator[Document]:
    """One document a page: its running text only, no code, tables or menus."""
    block = re.compile(r"<p\b.*?(?=</p>|<p\b|<h\d|<pre|<div|</div|<ul|<ol|<table|$)", re.S | re.I)
    for path in sorted(folder.glob("usr/share/doc/*/**/*.html")):
        page = path.read_text(encoding="utf-8", errors="replace")
        paragraphs = (plain(untagged(found)) for found in block.findall(page))
        yield [text for text in dict.fromkeys(paragraphs) if len(text) >= SHORTEST_HTML_PARAGRAPH]


def sword_books(folder: Path) -> Iterator[str]:
    """The OSIS markup of each book of a SWORD module compressed by book.

    `*.bzs` holds three little-endian uint32 a book: offset, compressed size, size in `*.bzz`.
    """
    for testament in ("ot", "nt"):
        (index,) = folder.glob(f"usr/share/sword/modules/**/{testament}.bzs")
        blocks = index.with_suffix(".bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            if size:
                yield zlib.decompress(blocks[offset : offset + size]).decode("utf-8", errors="replace")


def sword(folder: Path) -> Iterator[Document]:
    """One document a chapter."""
    for book in sword_books(folder):
        for chapter in re.split(r"<chapter\b[^>]*>", book):
            paragraphs = re.split(r'<div\b[^>]*type="(?:x-p|introduction)"[^>]*>', chapter)
            yield [plain(untagged(paragraph)) for paragraph in paragraphs]


def r_strings(data: bytes) -> list[str]:
    """The character vector of one serialised R object; empty when it holds none of any size.

    XDR layout: type word 0x10, count, then for each string a flag word, its length and its bytes.
    """
    start = data.find(b"\x00\x00\x00\x10")
    if start < 0 or start + 8 > len(data):
        return []
    (count,) = struct.unpack_from(">i", data, start + 4)
    lines, position = [], start + 8
    for _ in range(count):
        _, length = struct.unpack_from(">ii", data, position)
        lines.append(data[position + 8 : position + 8 + length].decode("utf-8", errors="replace"))
        position += 8 + length
    return lines


def r_objects(database: bytes) -> Iterator[bytes]:
    """The objects of R's lazy-load database: a big-endian size and a zlib stream each."""
    while len(database) > 4:
        stream = zlib.decompressobj()
        yield stream.decompress(database[4:])
        database = stream.unused_data


def austen(folder: Path) -> Iterator[Document]:
    """One document a chapter of the six novels."""
    (database,) = folder.glob("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
    for data in r_objects(database.read_bytes()):
        novel = "\n".join(r_strings(data))
        for chapter in re.split(r"\n(?=(?:CHAPTER|Chapter) [IVXLC\d]+)", novel):
            yield text_paragraphs(chapter)


def facts(value: object, name: str = "") -> Iterator[str]:
    """Every text in a country's profile, with the name of its field before it."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from facts(child, name if key == "text" else str(key))
    elif isinstance(value, str) and len(value) >= SHORTEST_FACT:
        for part in value.split("++"):
            yield f"{name[:1].upper()}{name[1:]}: {part}"


def factbook(folder: Path) -> Iterator[Document]:
    """One document a country."""
    for path in sorted(folder.glob("package/*/*.json")):
        yield [plain(fact) for fact in facts(json.loads(path.read_text(encoding="utf-8")))]


def gloss(line: str, kind: str) -> str:
    """A synset of WordNet's data files as prose: its words, its kind, the definition, the examples."""
    fields, _, text = line.partition(" | ")
    parts = fields.split()
    words = [re.sub(r"\(\w+\)$", "", parts[4 + 2 * i]).replace("_", " ") for i in range(int(parts[3], 16))]
    definition = re.sub(r'[;,:]?\s*".*$', "", text.strip(), flags=re.S).strip(" ;")
    examples = [found.strip() for found in re.findall(r'"([^"]+)"', text) if found.strip()]
    sentences = [e[0].upper() + e[1:] + ("" if e[-1] in ".?!" else ".") for e in examples]
    return plain(" ".join([f"{', '.join(words)} ({kind}): {definition}.", *sentences]))


def wordnet(folder: Path) -> Iterator[Document]:
    """A fifth of the synsets, every fifth one, in documents of neighbours."""
    for suffix, kind in WORDNET_KINDS.items():
        lines = (folder / f"usr/share/wordnet/data.{suffix}").read_text(encoding="utf-8").splitlines()
        synsets = [line for line in lines if not line.startswith("  ")][::5]
        glosses = [gloss(line, kind) for line in synsets]
        for start in range(0, len(glosses), GLOSSES_PER_DOCUMENT):
            yield glosses[start : start + GLOSSES_PER_DOCUMENT]
