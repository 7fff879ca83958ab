"""Uploads to the Hugging Face hub, against a stand-in for its HTTP API on this machine."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest
from huggingface_hub import constants

from torso.adapters import peft_format
from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.cli.main import main
from torso.model.config import GPT2Config
from torso.model.stages import GPT2
from torso.model.weights import save_folder

SHAPE = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2)
TOKEN = "hf_secret"


class StandIn(BaseHTTPRequestHandler):
    """Answers as huggingface.co does to the makers of repositories and commits; `status` is another answer to them."""

    made: ClassVar[list[dict[str, Any]]] = []
    files: ClassVar[dict[str, bytes]] = {}
    status: ClassVar[int] = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        host = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            self.made.append(json.loads(body))
            self._json({"url": f"{host}/{self.made[-1].get('organization', 'me')}/{self.made[-1]['name']}"})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for name in names]
            self._json({"files": files})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._json({"commitUrl": f"{host}/me/x/commit/1", "commitOid": "1" * 40, "success": True})
        else:
            self._json({})

    def _json(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StandIn]]:
    StandIn.made, StandIn.files, StandIn.status = [], {}, 200
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(huggingface_hub.HfApi, "__init__", _at_stand_in)
        yield StandIn
        huggingface_hub.close_session()
        server.shutdown()
        thread.join()


_original = huggingface_hub.HfApi.__init__


def _at_stand_in(self: huggingface_hub.HfApi, *args: Any, **kwargs: Any) -> None:
    """The library reads its address when it is imported."""
    _original(self, constants.ENDPOINT)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder as `torso export` writes it, and what else may lie there."""
    parameters = inject(GPT2(SHAPE), AdapterConfig(lora_rank=2), seed=0)
    tensors = {name: parameter.detach() for name, parameter in parameters.items()}
    folder = tmp_path / "adapter"
    peft_format.write(folder, peft_format.PeftAdapter(AdapterConfig(lora_rank=2), tensors), "/home/me/secret-project")
    (folder / "README.md").write_text("# An adapter\n")
    (folder / "notes.txt").write_text("private")
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str | Path, code: int = 2) -> str:
        assert main(["push", *map(str, words)]) == code
        [line] = capsys.readouterr().err.splitlines()
        assert TOKEN not in line
        return line

    return run


def test_an_adapter_goes_to_a_private_repository_in_one_piece_and_nothing_else_with_it(
    hub: type[StandIn], adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(adapter), "--to", "me/adapter"]) == 0
    assert hub.made == [{"name": "adapter", "organization": "me", "visibility": "private"}]
    assert sorted(hub.files) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert hub.files["adapter_model.safetensors"] == (adapter / "adapter_model.safetensors").read_bytes()
    config = json.loads(hub.files["adapter_config.json"])
    assert config == json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": None}
    printed = capsys.readouterr()
    assert printed.out.strip().endswith("/me/adapter")
    assert TOKEN not in printed.out + printed.err


def test_a_model_is_public_when_that_is_said(
    hub: type[StandIn], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_folder(tmp_path / "model", SHAPE, dict(GPT2(SHAPE).state_dict()))
    assert main(["push", str(tmp_path / "model"), "--to", "me/model", "--public", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["url"].endswith("/me/model")
    assert hub.made[0]["visibility"] == "public"
    assert sorted(hub.files) == ["config.json", "model.safetensors"]


def test_what_the_hub_refuses_or_fails_at_is_said_in_one_line(hub: type[StandIn], adapter: Path, refused: Any) -> None:
    hub.status = 403
    assert "the hub refused me/adapter (HTTP 403). Check the name" in refused(adapter, "--to", "me/adapter")
    hub.status = 401
    assert "HTTP 401" in refused(adapter, "--to", "me/adapter")
    hub.status = 500
    assert "the hub failed (HTTP 500)" in refused(adapter, "--to", "me/adapter", code=1)
    assert not hub.files


@pytest.mark.usefixtures("hub")
def test_without_a_network_a_token_or_a_proper_name_nothing_is_sent(
    adapter: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "to is 'adapter'" in refused(adapter, "--to", "adapter")
    assert "to is 'me/a b'" in refused(adapter, "--to", "me/a b")
    assert "to is ''" in refused(adapter)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "the upload failed: ConnectError" in refused(adapter, "--to", "me/adapter", code=1)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "no token" in refused(adapter, "--to", "me/adapter")


@pytest.mark.usefixtures("hub")
def test_a_folder_that_is_no_whole_export_is_not_sent(adapter: Path, refused: Any, tmp_path: Path) -> None:
    assert "--format means nothing with an exported folder" in refused(
        adapter, "--to", "me/adapter", "--format", "merged"
    )
    (adapter / "adapter_model.safetensors").write_bytes(b"damaged")
    assert "cannot be read" in refused(adapter, "--to", "me/adapter")
    assert "holds no run" in refused(tmp_path, "--to", "me/adapter")
    (tmp_path / "config.json").write_text("{}")
    assert "no model.safetensors" in refused(tmp_path, "--to", "me/adapter")
    assert not StandIn.made
