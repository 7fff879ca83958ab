from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import pytest

from torso.data import download, sources
from torso.data.download import E2E_SHA256, cache_folder, official_e2e
from torso.errors import DataError


def small_zip() -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("e2e-dataset/trainset.csv", "mr,ref\nname[A],A is a pub.\n")
    return data.getvalue()


ZIP = small_zip()
SHA256 = hashlib.sha256(ZIP).hexdigest()


class StandIn(BaseHTTPRequestHandler):
    """Answers /file with the zip, /moved with a redirect to it, /cut with half of it, else 404."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        StandIn.requests.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/file")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/file", "/cut") else 404)
        self.send_header("Content-Length", str(len(ZIP)))
        self.end_headers()
        self.wfile.write(ZIP[: len(ZIP) // 2] if self.path == "/cut" else ZIP)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    StandIn.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_it_is_fetched_once_and_says_so(server: str, tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        path = official_e2e(said.append, url=f"{server}/moved", sha256=SHA256, cache=tmp_path / "cache")
        assert path.read_bytes() == ZIP
    assert [line.startswith("Downloading E2E NLG") and server in line for line in said] == [True]
    assert StandIn.requests == ["/moved", "/file"]
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["e2e-dataset.zip"]


@pytest.mark.parametrize("page", ["file", "cut", "missing"])
def test_a_wrong_checksum_or_a_failed_transfer_leaves_nothing(server: str, tmp_path: Path, page: str) -> None:
    with pytest.raises(DataError) as caught:
        official_e2e(lambda _: None, url=f"{server}/{page}", sha256="0" * 64, cache=tmp_path)
    assert f"{server}/{page}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_copy_is_fetched_again(server: str, tmp_path: Path) -> None:
    (tmp_path / "e2e-dataset.zip").write_bytes(b"damaged")
    said: list[str] = []
    path = official_e2e(said.append, url=f"{server}/file", sha256=SHA256, cache=tmp_path)
    assert path.read_bytes() == ZIP
    assert "is damaged" in said[0]


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(DataError, match=r"cannot be downloaded.*Without internet give a copy: --data e2e:PATH"):
        official_e2e(lambda _: None, url="http://127.0.0.1:1/file", cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written.*TORSO_CACHE"):
        official_e2e(lambda _: None, url="http://127.0.0.1:1/", cache=tmp_path / "file")


def test_e2e_alone_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSO_CACHE", str(tmp_path))
    (tmp_path / "e2e-dataset.zip").write_bytes(ZIP)
    monkeypatch.setattr(sources, "official_e2e", lambda say: official_e2e(say, sha256=SHA256))
    corpus = sources.load("e2e", say=pytest.fail)
    assert corpus.name == "e2e"
    assert corpus.split("train")[0].mr == "name[A]"


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSO_CACHE", "/a")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("TORSO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/torso")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/c/.cache/torso")


def test_the_checksum_is_that_of_the_reference_copy(shared_data: Path) -> None:
    assert download._digest(shared_data / "e2e" / "e2e-dataset.zip") == E2E_SHA256
