"""How far a preparation is: `progress.json`, replaced in one step after everything it speaks of is on the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torso.data.news.manifest import SPLITS
from torso.data.news.storage import Written
from torso.errors import DataError, RunDirectoryError
from torso.files import replace_atomically

NAME = "progress.json"
EXAMPLES = 5
"""So many rows are named for each reason."""


@dataclass(kw_only=True)
class Progress:
    """Where to go on, and what came of the rows so far."""

    request: Mapping[str, Any]
    input: int = 0
    """Number of the input file."""
    offset: int = 0
    """Byte in it; 0 is its beginning."""
    row: int = 0
    """Rows of it that are done."""
    rows: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=lambda: {split: Written() for split in SPLITS})

    def count(self, what: str, place: str = "") -> None:
        """One row; `place` names it where it could not be used."""
        self.rows[what] = self.rows.get(what, 0) + 1
        if place and self.rows[what] <= EXAMPLES:
            self.examples.setdefault(what, []).append(place)

    @property
    def articles(self) -> int:
        """Of all splits."""
        return sum(written.articles for written in self.written.values())

    def save(self, folder: Path) -> None:
        """Raises StorageError."""
        replace_atomically(folder / NAME, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path, request: Mapping[str, Any]) -> Progress | None:
        """None where nothing was begun. Raises RunDirectoryError when something else was."""
        try:
            document = json.loads((folder / NAME).read_text(encoding="utf-8"))
            written = {name: Written(**value) for name, value in document.pop("written").items()}
            found = cls(**document, written=written)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{folder / NAME} is damaged: {error}", "Delete the folder and prepare again.") from None
        check_request(folder, found.request, request)
        return found


def check_request(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise RunDirectoryError, naming what differs, when a folder was begun with another request."""
    differing = [name for name in new if old.get(name) != new[name]]
    if differing:
        name = differing[0]
        what = f"{', '.join(differing)} ({name}: {_short(old.get(name))} there, {_short(new[name])} now)"
        raise RunDirectoryError(f"{folder} was prepared from something else: {what}", "Choose another --out.")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]}…"
