"""Text, tokens and labels stay at home: every byte of a real training and evaluation is looked at."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.split.client.stand_ins import Sent, Wiretap, over, put_between
from tests.split.client.test_remote_inference import PROMPTS, model
from tests.split.harness import TRAINING, Recipe, Servers, examples

from torso.data.micro_batches import BatchPlan
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.perplexity import perplexity
from torso.split.client.remote_inference import RemoteInference

TENSORS = {"activations", "activation_grad"}
INTEGER_LISTS = {"lengths", "rows", "layers"}
HEXADECIMAL = re.compile(r"[0-9a-f]{8,64}")


@pytest.fixture(scope="module", params=["safetensors", "json"])
def sent(request: pytest.FixtureRequest, pair: Servers, tmp_path_factory: pytest.TempPathFactory) -> list[Sent]:
    """Every request of a training with a checkpoint and a resume, and of an evaluation with decoding."""
    network = Wiretap()
    folder = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        put_between(patch, network)
        run = Recipe(folder=folder, servers=(pair.url,), wire=request.param)
        run.train(2)
        run.train(3)
    transport = over(network, f"application/{'json' if request.param == 'json' else 'vnd.safetensors'}")
    batches = BatchPlan(examples(), 3, TRAINING.global_batch_size, TRAINING.micro_batch_size).step(1).micro_batches
    with RemoteInference(run.spec(), (pair.url,), transport, 0, {}) as middle:
        decode(model(middle), PROMPTS, 60, DecodingConfig(max_new_tokens=4))
        perplexity(model(middle), batches)
    transport.close()
    return network.sent


def parts(request: Sent) -> tuple[dict[str, Any], dict[str, tuple[str, list[int]]]]:
    """(plain fields, tensors by name as dtype and shape) of a body."""
    if not request.body:
        return {}, {}
    if request.content_type == "application/vnd.safetensors":
        (size,) = struct.unpack("<Q", request.body[:8])
        header = json.loads(request.body[8 : 8 + size])
        fields = json.loads(header.pop("__metadata__")["message"])
        return fields, {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}
    fields = json.loads(request.body)
    tensors = {name: fields.pop(name) for name in TENSORS & fields.keys()}
    tensors |= {f"state/{name}": entry for name, entry in fields.pop("state", {}).items()}
    return fields, {name: (entry["dtype"], entry["shape"]) for name, entry in tensors.items()}


def values(value: Any) -> Iterator[Any]:
    """All plain values inside."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from values(inner)
    else:
        yield value


def test_every_kind_of_request_was_seen(sent: list[Sent]) -> None:
    ends = {request.path.rsplit("/", 1)[1] for request in sent}
    assert ends >= {"forward", "backward", "prepare", "commit", "state", "jobs", "info", "inference", "generations"}


def test_tensors_are_activations_gradients_or_adapters(sent: list[Sent]) -> None:
    for request in sent:
        for name, (dtype, shape) in parts(request)[1].items():
            if name.startswith("state/"):
                assert re.match(r"state/(adapter|exp_avg|exp_avg_sq):h\.|state/optimizer_step$", name)
                assert dtype in ("F32", "float32") or shape == [1]
            else:
                assert name in TENSORS
                assert dtype in ("F32", "float32")
                assert len(shape) == 3


def test_lists_of_whole_numbers_are_lengths_and_rows(sent: list[Sent]) -> None:
    for request in sent:
        for name, value in parts(request)[0].items():
            if isinstance(value, list) and value and isinstance(value[0], int):
                assert name in INTEGER_LISTS
                assert name != "lengths" or max(value) <= 32


def test_strings_are_random_names_hashes_and_settings(sent: list[Sent]) -> None:
    recipe = Recipe(folder=Path())
    settings = {*recipe.spec().arithmetic.values(), *recipe.adapter.targets, "dora", "fp32"}
    for request in sent:
        for value in values(parts(request)[0]):
            assert not isinstance(value, str) or value in settings or HEXADECIMAL.fullmatch(value)


@pytest.mark.parametrize("form", ["<q", "<i", "<h"])
def test_no_run_of_token_ids_is_in_any_body(sent: list[Sent], form: str) -> None:
    bodies = [request.body for request in sent]
    for example in examples():
        tokens = [*example.prompt_ids, *example.target_ids]
        needle = b"".join(struct.pack(form, token) for token in tokens[:3])
        assert not any(needle in body for body in bodies)


def test_addresses_carry_names_and_numbers_only(sent: list[Sent]) -> None:
    allowed = re.compile(r"/v1/(info|jobs(/[0-9a-f]{16,64}(/[a-z]+(/[0-9a-f]+)?)*)?)")
    assert all(allowed.fullmatch(request.path) for request in sent)
