"""Rows of a CSV file of articles, one after the other, whatever is wrong with some of them.

The file is read as bytes, so that a row's place in it is known and one that is not UTF-8 spoils nothing else. A quote
that is never closed would swallow all rows up to the next quote: where a row of several lines does not fit, its first
line is given up and the rows that its other lines may hold are looked for.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torso.errors import DataError

MAX_FIELD = 32 << 20
"""Characters; what is longer is taken for a quote that nobody closed."""
TEXT_COLUMNS = ("content", "article")
"""Of All the News 1 and of its successor."""
_YEAR = re.compile(r"\d{4}(\.0)?")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One row, or what stands where one should be.

    end: offset of the byte after it.
    text: of the article; "" where there is none to use.
    reason: why it cannot be used, or "".
    resumable: whether reading can go on from `end` in another process.
    """

    number: int
    end: int
    text: str
    reason: str
    resumable: bool


@dataclass(frozen=True)
class Layout:
    """Where a file's header says that things are."""

    width: int
    text: int
    year: int | None

    @classmethod
    def of(cls, header: Sequence[str], path: Path) -> Layout:
        """Raises DataError when no column holds articles, or two do."""
        names = [name.strip().lower() for name in header]
        places = [place for place, name in enumerate(names) if name in TEXT_COLUMNS]
        if len(places) != 1:
            found = ", ".join(map(repr, header))[:200]
            raise DataError(
                f"{path}: {len(places) or 'none'} of the columns {'are' if len(places) > 1 else 'is'} called"
                f" {' or '.join(TEXT_COLUMNS)} (its first line: {found})",
                "Expected All the News: a header, and articles in the column content (or article).",
            )
        return cls(len(names), places[0], names.index("year") if "year" in names else None)


def read_rows(path: Path, start: int = 0, number: int = 0) -> Iterator[Row]:
    """Rows from the byte `start` on (0: after the header); `number` of them came before. Raises DataError."""
    csv.field_size_limit(MAX_FIELD)
    try:
        with path.open("rb") as file:
            header = next(csv.reader(_Lines(file)), None)
            if header is None:
                raise DataError(f"{path} is empty", "Expected a CSV file with a header.")
            layout = Layout.of(header, path)
            if start:
                file.seek(start)
            else:
                file.seek(0)
                lines = _Lines(file)
                next(csv.reader(lines))
                start = lines.offset
            yield from _Reader(file, start, layout, number)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise DataError(f"{path}: its header is not CSV ({error})") from None


class _Lines:
    """Lines for the csv module, which takes one more only when a row goes on; those of the row so far are kept."""

    def __init__(self, file: IO[bytes], offset: int = 0) -> None:
        self._file, self.offset = file, offset
        self.taken: list[bytes] = []
        self._again: deque[bytes] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._take()
        if not line:
            raise StopIteration
        self.taken.append(line)
        return line.decode("utf-8", "surrogateescape")

    def give_back(self) -> bool:
        """All lines of the row but its first are still to be read; whether there are any."""
        rest = deque(self.taken)
        first = rest.popleft()
        # a line of more than MAX_FIELD comes in pieces
        while not first.endswith(b"\n") and (first or rest):
            first = rest.popleft() if rest else self._take()
        self.offset -= sum(map(len, rest))
        self._again.extendleft(reversed(rest))
        return bool(rest)

    def _take(self) -> bytes:
        line = self._again.popleft() if self._again else self._file.readline(MAX_FIELD)
        if self.offset == 0 and line.startswith(_BOM):
            line, self.offset = line[len(_BOM) :], len(_BOM)
        self.offset += len(line)
        return line

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return not self._again and not self._file.peek(1)  # type: ignore[attr-defined]


class _Reader:
    """Iterates over `Row`s."""

    def __init__(self, file: IO[bytes], start: int, layout: Layout, number: int) -> None:
        self._lines, self._layout, self._number = _Lines(file, start), layout, number
        self._salvaging_to = start
        """What fails before this offset belongs to a row that was given up and counted already."""

    def __iter__(self) -> Iterator[Row]:
        reader = csv.reader(self._lines)
        while True:
            self._lines.taken.clear()
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                row = self._give_up("field too long" if "limit" in str(error) else "malformed")
            else:
                row = self._row(fields)
            if row is not None:
                yield row

    def _row(self, fields: list[str]) -> Row | None:
        if not fields:
            return self._made("blank line")
        if self._lines.at_end() and sum(line.count(b'"') for line in self._lines.taken) % 2:
            return self._give_up("cut off")
        if len(fields) != self._layout.width:
            return self._give_up("wrong width")
        if self._is_salvage() and not self._has_year(fields):
            return None
        text = fields[self._layout.text]
        return self._counted(text, "") if _decodable(text) else self._counted("", "undecodable")

    def _give_up(self, reason: str) -> Row | None:
        known, end = self._is_salvage(), self._lines.offset
        if self._lines.give_back():
            self._salvaging_to = max(self._salvaging_to, end)
        return None if known else self._counted("", reason)

    def _made(self, reason: str) -> Row | None:
        return None if self._is_salvage() else self._counted("", reason)

    def _counted(self, text: str, reason: str) -> Row:
        self._number += 1
        end = self._lines.offset
        return Row(self._number, end, text, reason, resumable=end >= self._salvaging_to)

    def _is_salvage(self) -> bool:
        return self._lines.offset <= self._salvaging_to

    def _has_year(self, fields: Sequence[str]) -> bool:
        """A line of an article may have as many commas as a row."""
        return self._layout.year is not None and bool(_YEAR.fullmatch(fields[self._layout.year]))


def _decodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
