"""The E2E NLG data set: the official zip, a folder, or CSV files with the columns `mr` and `ref`.

Tidied while reading, and counted in the corpus's notes: a byte order mark; empty rows; runs of white space in
references (line breaks within quotes included) become one space; and the four encoding faults that E2E's own
evaluation scripts mend.
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torso.data.corpus import SPLITS, Corpus, Group, group_pairs
from torso.data.slots import prompt_of
from torso.data.text_files import decode_utf8, read_file
from torso.errors import DataError

FILES = {"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}

# UTF-8 read as Latin-1 (and then lower-cased), and "£" read as Latin-2.
ENCODING_FAULTS = {"Ł": "£", "Â£": "£", "Ã©": "é", "ã©": "é"}


@dataclass(frozen=True)
class Row:
    """One row of a CSV file, with the line that it starts on."""

    line: int
    mr: str
    reference: str


def load_e2e(where: str) -> Corpus:
    """The corpus at `where`: a zip, a folder, one CSV file (taken as the split that its name begins with,
    else as train), or several CSV files joined by commas. DataError when something is missing or
    malformed."""
    counts: Counter[str] = Counter()
    splits: dict[str, tuple[Group, ...]] = {}
    for split, label, data in _sources(where):
        splits[split] = _read_groups(label, data, counts)
    return Corpus(f"e2e:{where}", splits, _notes(counts))


def read_rows(label: str, data: bytes, counts: Counter[str]) -> Iterator[Row]:
    """The rows of one CSV file; `label` names it in errors; `counts` gathers what was mended or skipped."""
    records = csv_records(label, decode_utf8(label, data))
    header_line, header = next(records, (1, []))
    columns = [_column(label, header_line, header, name) for name in ("mr", "ref")]
    for line, record in records:
        if not any(cell.strip() for cell in record):
            counts["empty rows skipped"] += 1
            continue
        if len(record) != len(header):
            raise DataError(
                f"{label}, line {line}: {len(record)} columns where the header has {len(header)}",
                "Quote a value that contains a comma, a quote or a line break.",
            )
        mr, reference = (tidy(record[column], counts) for column in columns)
        if not mr or not reference:
            empty = "ref" if mr else "mr"
            raise DataError(f"{label}, line {line}: the column {empty!r} is empty", "Fill it, or delete the row.")
        yield Row(line, mr, reference)


def _read_groups(label: str, data: bytes, counts: Counter[str]) -> tuple[Group, ...]:
    prompts: dict[str, str] = {}
    pairs = []
    for row in read_rows(label, data, counts):
        if row.mr not in prompts:
            prompts[row.mr] = _prompt(label, row)
        pairs.append((row.mr, prompts[row.mr], row.reference))
    if not pairs:
        raise DataError(f"{label} has no rows", "Expected a header with mr and ref, and at least one row below it.")
    return group_pairs(pairs)


def _prompt(label: str, row: Row) -> str:
    try:
        return prompt_of(row.mr)
    except DataError as error:
        raise DataError(f"{label}, line {row.line}: {error.message}", error.remedy) from None


def _sources(where: str) -> Iterator[tuple[str, str, bytes]]:
    """(split, name for errors, bytes) of every CSV file at `where`."""
    path = Path(where).expanduser()
    if path.is_dir():
        yield from _from_folder(path)
    elif path.is_file() and (path.suffix.lower() == ".zip" or zipfile.is_zipfile(path)):
        yield from _from_zip(path)
    else:
        yield from _from_files(
            [path] if path.exists() else [Path(part.strip()).expanduser() for part in where.split(",")]
        )


def _from_folder(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    # The zip unpacks into a folder of its own: both it and the folder around it are accepted.
    folders = [folder, folder / "e2e-dataset"]
    found = {s: f / name for f in reversed(folders) for s, name in FILES.items() if (f / name).is_file()}
    if not found:
        raise DataError(f"the folder {folder} holds none of {', '.join(FILES.values())}")
    for split, path in found.items():
        yield split, str(path), read_file(path)


def _from_zip(path: Path) -> Iterator[tuple[str, str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {Path(name).name: name for name in archive.namelist() if "__MACOSX" not in name}
            found = {split: members[name] for split, name in FILES.items() if name in members}
            if not found:
                raise DataError(f"the zip {path} holds none of {', '.join(FILES.values())}")
            for split, member in found.items():
                yield split, f"{path}:{member}", archive.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        raise DataError(f"the zip {path} cannot be read: {error}", "Fetch it again.") from error


def _from_files(paths: list[Path]) -> Iterator[tuple[str, str, bytes]]:
    seen: dict[str, Path] = {}
    for path in paths:
        split = next((s for s in SPLITS if path.name.lower().startswith(s)), "")
        if not split and len(paths) > 1:
            raise DataError(
                f"{path.name!r} does not say which split it is",
                f"Let each file's name begin with one of {', '.join(SPLITS)}.",
            )
        split = split or "train"
        if split in seen:
            raise DataError(f"both {seen[split]} and {path} would be the {split} split", "Name one of them.")
        seen[split] = path
        yield split, str(path), read_file(path)


def csv_records(label: str, text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line it starts on, cells) of each record; csv's limit on a field's size is lifted meanwhile."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    line = 1
    while True:
        limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{label}, line {line}: not valid CSV ({error})",
                'Expected values quoted with " and quotes within them doubled.',
            ) from None
        finally:
            csv.field_size_limit(limit)
        yield line, record
        line = reader.line_num + 1


def _column(label: str, line: int, header: list[str], name: str) -> int:
    names = [cell.strip().lower() for cell in header]
    if names.count(name) != 1:
        found = ", ".join(repr(cell) for cell in header[:8]) or "nothing"
        raise DataError(
            f"{label}, line {line}: expected exactly one column {name!r} in the header, found {found[:200]}",
            "The first line must name the columns mr and ref.",
        )
    return names.index(name)


def tidy(cell: str, counts: Counter[str]) -> str:
    """White space joined and encoding faults mended, which `counts` is told."""
    for fault, right in ENCODING_FAULTS.items():
        if fault in cell:
            counts[f"encoding faults mended ({fault} to {right})"] += cell.count(fault)
            cell = cell.replace(fault, right)
    tidy = " ".join(cell.split())
    counts["cells with superfluous white space tidied"] += tidy != cell
    return tidy


def _notes(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{count} {what}" for what, count in counts.items() if count)
