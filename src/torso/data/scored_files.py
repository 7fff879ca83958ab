"""Files of references, outputs and inputs, in the formats of the official E2E scorer and as JSON Lines.

The name's ending says which: `.csv` and `.tsv` have a header with columns in any order; `.jsonl` has an object a line;
anything else is plain text, an output or input a line, or references in groups parted by blank lines. In CSV and TSV
the encoding faults that E2E's scripts mend are mended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.data.e2e import csv_records, tidy
from torso.data.text_files import decode_utf8, read_file
from torso.errors import DataError

MR = ("mr", "meaning_representation", "src", "source", "input", "prompt")
REFERENCE = ("ref", "reference", "references", "refs", "human_ref", "target", "completion")
OUTPUT = ("output", "prediction", "hypothesis", "hyp", "sys", "system", "text", "generated")
MOST_CHARACTERS = 100_000
"""Of one text."""
_Names = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One output, or one input's references, or one input alone (no texts)."""

    place: str
    """For errors, e.g. `refs.csv, line 3`."""
    mr: str | None
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise DataError for what is no single text: metrics take more than linear time."""
        longest = max(map(len, self.texts), default=0)
        if longest > MOST_CHARACTERS:
            raise DataError(
                f"{self.place}: a text of {longest} characters, {MOST_CHARACTERS} at most", "Give one output a line."
            )


def read_references(path: Path) -> list[Entry]:
    """A group of references each; rows with the same input on end are one group. DataError."""
    if _kind(path) == "plain":
        return _groups(path)
    merged: list[Entry] = []
    for entry in _entries(path, (*REFERENCE, *OUTPUT)):
        if not all(entry.texts) or not entry.texts:
            raise DataError(f"{entry.place}: the reference is empty", "Fill it, or delete the row.")
        if merged and entry.mr is not None and merged[-1].mr == entry.mr:
            merged[-1] = Entry(merged[-1].place, entry.mr, merged[-1].texts + entry.texts)
        else:
            merged.append(entry)
    return merged


def read_outputs(path: Path) -> list[Entry]:
    """One output each, which may be empty. DataError."""
    if _kind(path) == "plain":
        return [Entry(place, None, (line,)) for place, line in _lines(path, blank=True)]
    entries = list(_entries(path, (*OUTPUT, *REFERENCE)))
    for entry in entries:
        if len(entry.texts) != 1:
            raise DataError(f"{entry.place}: {len(entry.texts)} outputs where one was expected")
    return entries


def read_mrs(path: Path) -> list[Entry]:
    """One input each; rows with the same input on end are one. DataError."""
    if _kind(path) == "plain":
        return [Entry(place, line, ()) for place, line in _lines(path)]
    entries: list[Entry] = []
    for entry in _entries(path, ()):
        if not entries or entries[-1].mr != entry.mr:
            entries.append(entry)
    return entries


def merged_by_input(entries: Sequence[Entry]) -> list[Entry]:
    """References of equal inputs in one group, wherever they stand, in order of first appearance."""
    found: dict[str | None, Entry] = {}
    for entry in entries:
        first = found.setdefault(entry.mr, Entry(entry.place, entry.mr, ()))
        found[entry.mr] = Entry(first.place, first.mr, first.texts + entry.texts)
    return list(found.values())


def _kind(path: Path) -> str:
    return {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}.get(path.suffix.lower(), "plain")


def _text(path: Path, blank: bool = False) -> str:
    """What the file says; there must be something, though with `blank` it may be blank lines."""
    text = decode_utf8(str(path), read_file(path))
    if not (text if blank else text.strip()):
        raise DataError(f"{path} is empty", "Is it the right file?")
    return text


def _lines(path: Path, blank: bool = False) -> Iterator[tuple[str, str]]:
    """(place, line), stripped, as the official scorer reads it; the file's last end of line begins no other."""
    lines = _text(path, blank).removesuffix("\n").split("\n")
    _refuse_tables(path, lines[0])
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line.strip()


def _groups(path: Path) -> list[Entry]:
    groups: list[Entry] = []
    going_on = False
    for place, line in _lines(path):
        if line and going_on:
            groups[-1] = Entry(groups[-1].place, None, (*groups[-1].texts, line))
        elif line:
            groups.append(Entry(place, None, (line,)))
        going_on = bool(line)
    return groups


def _refuse_tables(path: Path, line: str) -> None:
    cells = {cell.strip().strip('"').lower() for cell in line.replace("\t", ",").split(",")}
    if len(cells) > 1 and cells <= {*MR, *REFERENCE, *OUTPUT}:
        raise DataError(f"{path} begins with a table's header, {line[:60]!r}", "Let its name end in .csv or .tsv.")


def _entries(path: Path, names: _Names) -> Iterator[Entry]:
    return _of_jsonl(path, names) if _kind(path) == "jsonl" else _of_table(path, names)


def _of_table(path: Path, names: _Names) -> Iterator[Entry]:
    records = csv_records(str(path), _text(path), "\t" if _kind(path) == "tsv" else ",")
    counts: Counter[str] = Counter()
    _, header = next(records, (1, []))
    columns = [cell.strip().lower() for cell in header]
    mr, text = _column(path, columns, MR), _column(path, columns, names)
    if (text if names else mr) is None:
        found = ", ".join(map(repr, header[:8]))[:200]
        raise DataError(
            f"{path}: no column of {found} is named {' or '.join(names or MR)}", "Name it in the first line."
        )
    for line, record in records:
        place = f"{path}, line {line}"
        # of a table with one column an empty value is no empty row
        if not any(cell.strip() for cell in record) and (len(header) > 1 or not record):
            continue
        if len(record) != len(header):
            found = f"{place}: {len(record)} columns where the header has {len(header)}"
            raise DataError(found, "Quote a value that contains the separator, a quote or a line break.")
        texts = () if text is None else (tidy(record[text], counts),)
        yield Entry(place, None if mr is None else tidy(record[mr], counts), texts)


def _column(path: Path, columns: list[str], names: _Names) -> int | None:
    """The first of these names that is there."""
    for name in names:
        if columns.count(name) > 1:
            raise DataError(f"{path}: two columns are named {name!r}")
        if name in columns:
            return columns.index(name)
    return None


def _of_jsonl(path: Path, names: _Names) -> Iterator[Entry]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield _of_object(f"{path}, line {number}", line, names)


def _of_object(place: str, line: str, names: _Names) -> Entry:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({str(error)[:80]})", "Expected one object a line.") from None
    if not isinstance(value, dict):
        raise DataError(f"{place}: {line.strip()[:60]!r} is not an object")
    mr = next((name for name in MR if value.get(name) is not None), None)
    key = next((name for name in names or MR if name in value), None)
    if key is None:
        keys = ", ".join(map(repr, value))[:200] or "none"
        raise DataError(f"{place}: no key is named {' or '.join(names or MR)} (keys: {keys})")
    found = value[key] if names else []
    strings = tuple(_string(place, key, text) for text in (found if isinstance(found, list) else [found]))
    if not names and mr is None:
        raise DataError(f"{place}: {key} is null, not a string")
    return Entry(place, None if mr is None else _string(place, mr, value[mr]), strings)


def _string(place: str, key: str, text: object) -> str:
    if not isinstance(text, str):
        raise DataError(f"{place}: {key} is {json.dumps(text)[:60]}, not a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: half of a surrogate pair") from None
    return " ".join(text.split())
