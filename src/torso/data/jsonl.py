"""People's own text: JSON Lines with `prompt` and `completion`, or with `text`.

A folder holds train.jsonl, and dev.jsonl and test.jsonl where there are any. A single file is split by a
hash of the prompt (of the text, where there is no prompt): about 90 % train, 5 % dev, 5 % test. All
completions of one prompt fall into the same split, and a line stays in its split when others are added or
removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torso.data.corpus import SPLITS, Corpus, Group
from torso.data.text_files import decode_utf8, read_file
from torso.errors import DataError
from torso.randomness import hash64

_EXPECTED = 'Expected {"prompt": "…", "completion": "…"} or {"text": "…"}, one object a line.'


@dataclass(frozen=True)
class _Entry:
    prompt: str
    completion: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes entries one group: the prompt; texts without a prompt stand alone."""
        return (self.prompt, "") if self.prompt else ("", self.completion)


def load_jsonl(where: str) -> Corpus:
    """The corpus of a file or folder; DataError with the line's number where a line is broken."""
    path = Path(where).expanduser()
    name = f"jsonl:{where}"
    if not path.is_dir():
        return Corpus(name, _split_by_hash(_read(path)))
    files = {split: path / f"{split}.jsonl" for split in SPLITS}
    found = {split: _group(_read(file)) for split, file in files.items() if file.is_file()}
    if not found:
        raise DataError(f"the folder {path} holds none of {', '.join(file.name for file in files.values())}")
    return Corpus(name, found)


def _split_by_hash(entries: list[_Entry]) -> dict[str, tuple[Group, ...]]:
    chosen: dict[str, list[_Entry]] = {split: [] for split in SPLITS}
    for entry in entries:
        place = hash64("jsonl", *entry.key) % 100
        chosen["train" if place < 90 else "dev" if place < 95 else "test"].append(entry)
    return {split: _group(members) for split, members in chosen.items() if members}


def _group(entries: list[_Entry]) -> tuple[Group, ...]:
    members: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        members.setdefault(entry.key, []).append(entry)
    return tuple(
        Group(mr=same[0].prompt, prompt=same[0].prompt, references=tuple(entry.completion for entry in same))
        for same in members.values()
    )


def _read(path: Path) -> list[_Entry]:
    entries = list(_entries(path, decode_utf8(str(path), read_file(path))))
    if not entries:
        raise DataError(f"{path} has no lines", _EXPECTED)
    return entries


def _entries(path: Path, text: str) -> Iterator[_Entry]:
    # Not splitlines(): JSON strings may hold the line separators of Unicode as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _parse(f"{path}, line {number}", line)


def _parse(place: str, line: str) -> _Entry:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON ({error.msg} at character {error.pos + 1})", _EXPECTED) from None
    except (RecursionError, ValueError):
        raise DataError(f"{place}: JSON nested too deeply, or a number of too many digits", _EXPECTED) from None
    if not isinstance(value, dict):
        raise DataError(f"{place}: {line.strip()[:60]!r} is not an object", _EXPECTED)
    has_text = "text" in value
    if has_text == ("completion" in value) or has_text == ("prompt" in value):
        raise DataError(f"{place}: the keys are {', '.join(map(repr, value)) or 'none'}"[:300], _EXPECTED)
    prompt = "" if has_text else _string(place, value, "prompt")
    completion = _string(place, value, "text" if has_text else "completion")
    if not completion:
        raise DataError(f"{place}: {'text' if has_text else 'completion'} is empty", "Fill it, or delete the line.")
    return _Entry(prompt, completion)


def _string(place: str, value: dict[str, object], key: str) -> str:
    text = value[key]
    if not isinstance(text, str):
        raise DataError(f"{place}: {key} is {json.dumps(text)[:60]}, not a string", _EXPECTED)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {key} holds half of a surrogate pair at character {error.start + 1}") from None
    return text.strip()
