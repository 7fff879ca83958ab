"""What `--model` may be, and what is fetched for it: from a stand-in for the hub on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from torso.errors import WeightsError
from torso.model import hub
from torso.model.config import SIZES, GPT2Config
from torso.model.hub import WEIGHT_FILES, config_of, open_source, resolve, tokenizer_folder
from torso.model.names import expected_shapes
from torso.model.weights import FolderWeights, RandomWeights, save_folder

COMMIT = "0123456789" * 4
TINY = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2)


class StandIn(BaseHTTPRequestHandler):
    """Answers as huggingface.co does for openai-community/gpt2; `damage` spoils the weights on their way."""

    files: ClassVar[dict[str, bytes]] = {}
    fetched: ClassVar[list[str]] = []
    damage: ClassVar[str] = ""

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/openai-community/gpt2/tree/"):
            self._json([entry(name, content) for name, content in self.files.items()])
        elif self.path.startswith("/api/models/openai-community/gpt2"):
            self._json({"id": "openai-community/gpt2", "sha": COMMIT, "siblings": []})
        else:
            self._file(with_body=True)

    def _json(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _file(self, *, with_body: bool) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        content = self.files.get(name)
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("X-Repo-Commit", COMMIT)
        if content is not None:
            self.send_header("ETag", f'"{checksum(name, content)}"')
        self.end_headers()
        if with_body and content is not None:
            StandIn.fetched.append(name)
            flipped = name.endswith(".safetensors") and self.damage == "flipped"
            self.wfile.write(content[:-1] + bytes([content[-1] ^ 1]) if flipped else content)

    def log_message(self, *args: object) -> None:
        pass


def checksum(name: str, content: bytes) -> str:
    """Large files are named by SHA-256, small ones by git's SHA-1."""
    if name.endswith((".safetensors", ".bin")):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entry(name: str, content: bytes) -> dict[str, object]:
    """A file in the hub's listing."""
    oid = checksum(name, content)
    large = {"lfs": {"oid": oid, "size": len(content), "pointerSize": 134}} if len(oid) == 64 else {}
    return {"type": "file", "path": name, "size": len(content), "oid": oid[:40], **large}


def published(folder: Path) -> dict[str, bytes]:
    """Files as the repository has them, a pickle among them."""
    source = RandomWeights(TINY, 1)
    save_folder(folder, TINY, {name: source.tensor(name) for name in expected_shapes(TINY)})
    others = {"pytorch_model.bin": b"pickle", "README.md": b"text", "tokenizer.json": b"{}"}
    return {path.name: path.read_bytes() for path in folder.iterdir()} | others


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """Let huggingface_hub ask there, and keep what it gets here."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[StandIn]]:
    StandIn.files, StandIn.fetched, StandIn.damage = published(tmp_path / "published"), [], ""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        use(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
        yield StandIn
        huggingface_hub.close_session()
        server.shutdown()
        thread.join()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **kwargs: object) -> str:
        raise AssertionError("nothing was to be fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)


@pytest.mark.usefixtures("no_network")
def test_mini_folders_shapes_and_random_weights_need_no_network(tmp_path: Path) -> None:
    published(tmp_path / "mine")
    assert isinstance(open_source("mini"), FolderWeights)
    assert config_of("mini").n_layer >= 6
    assert (tokenizer_folder("mini") / "tokenizer.json").is_file()
    assert open_source(str(tmp_path / "mine")).config == TINY
    assert isinstance(open_source("gpt2", "random", seed=1), RandomWeights)
    assert {name: config_of(name) for name in SIZES} == SIZES


def test_a_home_folder_may_be_given_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert resolve("~/mine", WEIGHT_FILES) == tmp_path / "mine"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("model", ["gpt3", "", "openai-community/gpt2", "/nowhere"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(model: str) -> None:
    known = "neither a folder nor one of mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl"
    with pytest.raises(WeightsError, match=known):
        open_source(model)


def test_weights_are_fetched_once_and_no_pickle_with_them(stand_in: type[StandIn]) -> None:
    for _ in range(2):
        source = open_source("gpt2")
        assert source.config == TINY
        assert torch.equal(source.tensor("h.1.mlp.c_fc.weight"), RandomWeights(TINY, 1).tensor("h.1.mlp.c_fc.weight"))
    assert sorted(stand_in.fetched) == ["config.json", "model.safetensors"]


def test_a_cache_with_other_files_of_the_model_is_completed(stand_in: type[StandIn]) -> None:
    assert (tokenizer_folder("gpt2") / "tokenizer.json").read_bytes() == b"{}"
    assert stand_in.fetched == ["tokenizer.json"]
    assert open_source("gpt2").config == TINY
    assert tokenizer_folder("gpt2")
    assert sorted(stand_in.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_cache_that_another_program_filled_in_part_is_completed(stand_in: type[StandIn], tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--openai-community--gpt2"
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots" / COMMIT / "config.json").write_bytes(stand_in.files["config.json"])
    assert open_source("gpt2").config == TINY
    assert "model.safetensors" in stand_in.fetched


def test_weights_damaged_on_their_way_are_refused_and_fetched_again(stand_in: type[StandIn]) -> None:
    stand_in.damage = "flipped"
    with pytest.raises(WeightsError, match=r"model\.safetensors was damaged on its way"):
        open_source("gpt2")
    stand_in.damage = ""
    assert open_source("gpt2").config == TINY
    assert stand_in.fetched.count("model.safetensors") == 2


@pytest.mark.parametrize("model", ["gpt2", "gpt2-xl"])
def test_without_a_network_the_error_says_what_to_do(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, "http://127.0.0.1:1", tmp_path)
    with pytest.raises(WeightsError, match=rf"^{model} is not in the .* cache .*--init random") as caught:
        open_source(model)
    assert "\n" not in str(caught.value)


def test_errors_of_the_http_client_below_are_clear_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class ProxyError(Exception):
        """As the client's: no OSError, and none of huggingface_hub's."""

    def fails(*args: object, local_files_only: bool = False, **kwargs: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("none") if local_files_only else ProxyError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(WeightsError, match=r"cannot be fetched \(ProxyError\)"):
        hub.open_source("gpt2")
