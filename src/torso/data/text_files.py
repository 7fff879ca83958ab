"""Files into text, with errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path

from torso.errors import DataError


def read_file(path: Path) -> bytes:
    """The bytes of a file; DataError when it is not there or cannot be read."""
    if path.is_dir():
        raise DataError(f"{path} is a folder where a file was expected")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}", "Check the path.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def decode_utf8(label: str, data: bytes) -> str:
    """UTF-8 text without its byte order mark; DataError that names the line of the first byte that is not UTF-8, or
    that is zero, as every second one is in UTF-16."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{label}, line {line}: the byte 0x{data[error.start]:02x} is not UTF-8",
            "Save the file as UTF-8.",
        ) from None
    if "\0" in text:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise DataError(f"{label}, line {line}: a byte is zero, which no text has", "Save the file as UTF-8.")
    return text
