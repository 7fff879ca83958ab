from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from torso import files
from torso.errors import ConfigError, StorageError


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes three bytes of each write."""

    def write(descriptor: int, data: bytes) -> int:
        if len(data) <= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, data[:3])

    original = os.write
    monkeypatch.setattr(os, "write", write)


@pytest.mark.usefixtures("full")
def test_a_file_that_does_not_fit_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(StorageError, match=r"/a could not be written: No space left.*Make room"):
        files.replace_atomically(tmp_path / "a", b"12345")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


@pytest.mark.usefixtures("full")
def test_a_line_that_does_not_fit_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"/a could not be written: No space left"):
        files.append(tmp_path / "a", b"12345\n")


def test_a_write_that_the_system_takes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:3]))
    files.write_synced(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_cut_last_line_is_ended_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntw")
    files.append(tmp_path / "a", b"three\n")
    files.append(tmp_path / "a", b"four\n")
    assert (tmp_path / "a").read_bytes() == b"one\ntw\nthree\nfour\n"


def test_only_a_full_disk_is_told_to_make_room(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"No such file or directory. Name a place where files may be written\.$"):
        files.replace_atomically(tmp_path / "nowhere" / "a", b"1")


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("", False, r"out is '.*', a folder"),
        ("nowhere/a", False, "there is no folder .*nowhere"),
        ("a/b", False, "a is no folder"),
        ("a", True, "a is no folder"),
        ("a/b/c", True, "a is no folder"),
    ],
)
def test_a_place_that_takes_no_file_is_known_before_the_work(
    name: str, folder: bool, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a file")
    for good in ("", "new", "new/deep"):
        files.check_place(tmp_path / good, "out", folder=True)
    files.check_place(tmp_path / "a", "out")
    with pytest.raises(ConfigError, match=message):
        files.check_place(tmp_path / name, "out", folder)
