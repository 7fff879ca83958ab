from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from torso.errors import WeightsError
from torso.model.config import Cuts, GPT2Config
from torso.model.names import expected_shapes, layer_of
from torso.model.stages import GPT2, Body, Head, Tail
from torso.model.weights import FolderWeights, RandomWeights, build, save_folder


class Recorded(FolderWeights):
    """Remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read: list[str] = []

    def _stored(self, name: str) -> Tensor:
        self.read.append(name)
        return super()._stored(name)


@pytest.fixture
def tensors(small: RandomWeights) -> dict[str, Tensor]:
    return {name: small.tensor(name) for name in expected_shapes(small.config)}


@pytest.fixture
def folder(small: RandomWeights, tensors: dict[str, Tensor], tmp_path: Path) -> Path:
    save_folder(tmp_path / "model", small.config, tensors)
    return tmp_path / "model"


def change(folder: Path, **changed: Tensor | None) -> Path:
    """Add, replace or (None) remove stored tensors; `__` stands for a dot."""
    path = folder / "model.safetensors"
    stored = load_file(path) | {name.replace("__", "."): value for name, value in changed.items() if value is not None}
    removed = {name.replace("__", ".") for name, value in changed.items() if value is None}
    save_file({name: value for name, value in stored.items() if name not in removed}, path)
    return folder


def shard(folder: Path, limit: str = "20KB") -> Path:
    """The folder as transformers writes it in several files."""
    transformers = pytest.importorskip("transformers")
    out = folder.parent / "shards"
    transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).save_pretrained(out, max_shard_size=limit)
    assert len(list(out.glob("*.safetensors"))) > 2
    return out


def test_what_is_saved_is_read_back_bit_for_bit(folder: Path, tensors: dict[str, Tensor], small: RandomWeights) -> None:
    source = FolderWeights(folder)
    assert source.config == small.config
    assert all(torch.equal(source.tensor(name), value) for name, value in tensors.items())


def test_transformers_loads_what_is_saved_with_the_head_tied_and_stored_once(
    folder: Path, small: RandomWeights
) -> None:
    transformers = pytest.importorskip("transformers")
    other, info = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert other.lm_head.weight is other.transformer.wte.weight
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    ids = torch.arange(20)[None]
    model = build(lambda config, cuts: GPT2(config), small, Cuts.default(5))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), other.eval()(ids).logits, rtol=1e-5, atol=1e-5)


def test_each_party_reads_its_own_tensors_and_no_others(folder: Path) -> None:
    source, cuts = Recorded(folder), Cuts(2, 4, 5)
    build(Body, source, cuts)
    assert {layer_of(name) for name in source.read} == {2, 3}
    source.read.clear()
    build(Head, source, cuts)
    build(Tail, source, cuts)
    assert {layer_of(name) for name in source.read} == {None, 0, 1, 4}
    assert sorted({name for name in source.read if layer_of(name) is None}) == [
        "ln_f.bias", "ln_f.weight", "wpe.weight", "wte.weight",
    ]  # fmt: skip


def test_a_folder_with_the_bodys_tensors_alone_serves_a_body_and_nothing_else(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in stored.items() if ".h.2." in k}, folder / "model.safetensors")
    source, cuts = FolderWeights(folder), Cuts(2, 3, 5)
    build(Body, source, cuts)
    assert source.has(range(2, 3))
    assert not source.has(range(1, 3))
    with pytest.raises(WeightsError, match=r"lacks the tensor wte\.weight"):
        build(Head, source, cuts)


def test_stages_are_frozen_and_of_the_dtype_asked_for(folder: Path) -> None:
    stage = build(Tail, FolderWeights(folder), Cuts.default(5), dtype=torch.bfloat16)
    assert {(p.dtype, p.requires_grad, p.is_meta) for p in stage.parameters()} == {(torch.bfloat16, False, False)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_other_precision_are_read_at_their_own_values(
    small: RandomWeights, tensors: dict[str, Tensor], tmp_path: Path, dtype: torch.dtype
) -> None:
    save_folder(tmp_path, small.config, {name: value.to(dtype) for name, value in tensors.items()})
    stage = build(Head, FolderWeights(tmp_path), Cuts.default(5))
    for name, value in stage.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, tensors[name].to(dtype).float())


def test_old_files_without_prefix_and_with_masks_are_read_as_published(
    folder: Path, tensors: dict[str, Tensor]
) -> None:
    stored = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): value for name, value in stored.items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 32, 32) for layer in range(5)}
    save_file(old | masks | {"h.0.attn.masked_bias": torch.tensor(-1e4)}, folder / "model.safetensors")
    source = FolderWeights(folder)
    assert all(torch.equal(source.tensor(name), value) for name, value in tensors.items())


def test_an_lm_head_of_its_own_is_fine_when_it_equals_the_embeddings(folder: Path, tensors: dict[str, Tensor]) -> None:
    change(folder, lm_head__weight=tensors["wte.weight"].clone())
    assert torch.equal(FolderWeights(folder).tensor("wte.weight"), tensors["wte.weight"])


@pytest.mark.parametrize("stage", [Head, Tail])
def test_an_lm_head_that_is_not_tied_is_refused(folder: Path, tensors: dict[str, Tensor], stage: Any) -> None:
    change(folder, lm_head__weight=tensors["wte.weight"] + 1)
    with pytest.raises(WeightsError, match="LM head that is not tied"):
        build(stage, FolderWeights(folder), Cuts.default(5))


def test_missing_unexpected_and_misshapen_tensors_are_named(folder: Path) -> None:
    change(folder, transformer__h__4__mlp__c_fc__bias=None, transformer__ln_f__weight=torch.ones(23))
    source = FolderWeights(folder)
    with pytest.raises(WeightsError, match=r"lacks the tensor h\.4\.mlp\.c_fc\.bias"):
        source.tensor("h.4.mlp.c_fc.bias")
    with pytest.raises(WeightsError, match=r"ln_f\.weight in .* has shape \(23,\), expected \(24,\)"):
        source.tensor("ln_f.weight")
    change(folder, transformer__h__5__ln_1__weight=torch.ones(24), score=torch.ones(2))
    with pytest.raises(
        WeightsError, match=r"unexpected tensors: (score, h\.5\.ln_1\.weight|h\.5\.ln_1\.weight, score)"
    ):
        FolderWeights(folder)


def test_weights_as_linear_layers_store_them_are_misshapen(folder: Path, tensors: dict[str, Tensor]) -> None:
    change(folder, transformer__h__0__attn__c_attn__weight=tensors["h.0.attn.c_attn.weight"])
    with pytest.raises(WeightsError, match=r"c_attn\.weight .* has shape \(24, 72\), expected \(72, 24\)"):
        FolderWeights(folder).tensor("h.0.attn.c_attn.weight")


def test_shards_with_an_index_are_read_as_one_file(folder: Path, tensors: dict[str, Tensor]) -> None:
    source, plain = FolderWeights(shard(folder)), FolderWeights(folder)
    assert all(torch.equal(source.tensor(name), value) for name, value in tensors.items())
    assert source.fingerprint(range(1, 4)) == plain.fingerprint(range(1, 4))


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b.safetensors"}}'],
)
def test_a_broken_index_is_one_clear_line(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(WeightsError, match=r"index\.json") as caught:
        FolderWeights(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_or_cut_shard_and_one_without_its_tensor_are_clear_errors(folder: Path) -> None:
    shards = shard(folder)
    paths = sorted(shards.glob("*.safetensors"))
    cut_short(paths[0])
    paths[1].unlink()
    save_file({"other": torch.ones(1)}, paths[2])
    source = FolderWeights(shards)
    index = json.loads((shards / "model.safetensors.index.json").read_text())["weight_map"]
    for path in paths[:3]:
        name = next(key for key, file in index.items() if file == path.name).removeprefix("transformer.")
        with pytest.raises(WeightsError, match=rf"{path.name} cannot be read"):
            source.tensor(name)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("kind", ["cut", "empty", "text", "huge header"])
def test_a_damaged_file_is_refused_with_its_name(folder: Path, kind: str) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    damaged = {"cut": whole[:-100], "empty": b"", "text": b"<html>not found</html>", "huge header": b"\xff" * 64}
    path.write_bytes(damaged[kind])
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read.*Fetch it again"):
        FolderWeights(folder)


def test_pickles_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"has no model\.safetensors. Weights must be safetensors"):
        FolderWeights(folder)


def test_only_a_whole_gpt2_is_saved(small: RandomWeights, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    del tensors["wpe.weight"]
    with pytest.raises(WeightsError, match=r"not a whole GPT-2: wpe\.weight"):
        save_folder(tmp_path / "out", small.config, tensors)
    assert not (tmp_path / "out").exists()


def test_fingerprints_follow_the_weights_of_their_own_layers(folder: Path) -> None:
    before = {layer: FolderWeights(folder).fingerprint(range(layer, layer + 1)) for layer in range(5)}
    assert len(set(before.values())) == 5
    change(folder, transformer__h__3__mlp__c_fc__bias=torch.full((96,), 1e-7))
    after = {layer: FolderWeights(folder).fingerprint(range(layer, layer + 1)) for layer in range(5)}
    assert [layer for layer in range(5) if before[layer] != after[layer]] == [3]


def test_random_weights_follow_from_seed_and_name_with_gpt2s_deviations() -> None:
    config = GPT2Config(n_layer=8)
    source = RandomWeights(config, 1)
    for name, deviation in (("h.3.attn.c_attn.weight", 0.02), ("h.3.mlp.c_proj.weight", 0.02 / 4)):
        value = source.tensor(name)
        assert float(value.std()) == pytest.approx(deviation, rel=0.01)
        assert torch.equal(RandomWeights(config, 1).tensor(name), value)
        assert not torch.equal(RandomWeights(config, 2).tensor(name), value)
    assert not source.tensor("h.3.mlp.c_fc.bias").any()
    assert torch.equal(source.tensor("ln_f.weight"), torch.ones(768))
    assert source.fingerprint(range(2)) != RandomWeights(config, 2).fingerprint(range(2))
