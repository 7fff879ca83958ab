from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torso.adapters import peft_format
from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.errors import AdapterError
from torso.model.config import GPT2Config
from torso.model.stages import GPT2

Shake = Callable[[dict[str, nn.Parameter]], None]
FIRST = "base_model.model.transformer.h.0.attn.c_attn"


@pytest.fixture
def dora(shared_data: Path, tmp_path: Path) -> Path:
    return _writable(shared_data / "peft-fixtures" / "dora", tmp_path / "dora")


@pytest.fixture
def lora(shared_data: Path, tmp_path: Path) -> Path:
    return _writable(shared_data / "peft-fixtures" / "lora", tmp_path / "lora")


def _writable(source: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in source.iterdir():
        shutil.copyfile(file, folder / file.name)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / peft_format.CONFIG
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in settings.items() if value != "DELETE"}))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    path = folder / peft_format.TENSORS
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def an_adapter(shake: Shake, config: AdapterConfig) -> peft_format.PeftAdapter:
    parameters = inject(GPT2(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)), config, seed=0)
    shake(parameters)
    return peft_format.PeftAdapter(config, {name: p.detach() for name, p in parameters.items()})


def test_a_folder_that_peft_wrote_is_read(dora: Path) -> None:
    adapter = peft_format.read(dora)
    assert adapter.config == AdapterConfig(kind="dora", lora_rank=4, alpha=8.0, targets=("c_attn",))
    leaves = ("lora_A", "lora_B", "magnitude")
    assert list(adapter.tensors) == [f"h.{layer}.attn.c_attn.{leaf}" for layer in (0, 1) for leaf in leaves]
    stored = load_file(dora / peft_format.TENSORS)
    assert torch.equal(adapter.tensors["h.0.attn.c_attn.magnitude"], stored[f"{FIRST}.lora_magnitude_vector"])


@pytest.mark.parametrize(
    "config",
    [
        AdapterConfig(kind="dora", lora_rank=3, alpha=2.5, dropout=0.1),
        AdapterConfig(lora_rank=3, rslora=True, targets=("mlp.c_proj", "c_attn")),
        AdapterConfig(
            kind="dora",
            targets=("attn.c_attn", "mlp.c_fc"),
            modules=("h.0.attn.c_attn=2:4.0", "h.1.attn.c_attn=8:16.0", "h.1.mlp.c_fc=3:1.5"),
        ),
    ],
)
def test_what_is_written_is_read_back(config: AdapterConfig, shake: Shake, tmp_path: Path) -> None:
    adapter = an_adapter(shake, config)
    peft_format.write(tmp_path / "a", adapter, base_model="gpt2")
    back = peft_format.read(tmp_path / "a")
    assert back.config == config
    assert list(back.tensors) == list(adapter.tensors)
    assert all(torch.equal(back.tensors[name], tensor) for name, tensor in adapter.tensors.items())
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [peft_format.CONFIG, peft_format.TENSORS]


def test_an_adapter_is_not_overwritten(shake: Shake, tmp_path: Path) -> None:
    adapter = an_adapter(shake, AdapterConfig())
    peft_format.write(tmp_path, adapter)
    with pytest.raises(AdapterError, match="holds an adapter already"):
        peft_format.write(tmp_path, adapter)


def test_a_part_of_an_adapter_is_not_written(shake: Shake, tmp_path: Path) -> None:
    adapter = an_adapter(shake, AdapterConfig())
    body = {name: t for name, t in adapter.tensors.items() if name.startswith("h.1.")}
    with pytest.raises(AdapterError, match=r"lacks h\.0\.attn\.c_attn\.lora_A"):
        peft_format.write(tmp_path / "a", peft_format.PeftAdapter(adapter.config, body))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_dora": "DELETE"}, "magnitudes.*use_dora nowhere"),
        ({"use_dora": False}, "magnitudes.*use_dora False"),
        ({"use_dora": "yes"}, "use_dora"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"peft_type": "DELETE"}, "peft_type None"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
        ({"bias": "all"}, "biases"),
        ({"lora_alpha": "DELETE"}, "lora_alpha None"),
        ({"lora_alpha": "8"}, "lora_alpha '8'"),
        ({"lora_alpha": 0}, "alpha is 0"),
        ({"r": "DELETE"}, "r None"),
        ({"r": 4.5}, "rank 4.5"),
        ({"r": 5}, r"lora_A .* shape \(4, 32\), expected \(5, 32\)"),
        ({"rank_pattern": {"h.0": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"h.0": 2}}, "alpha_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layers_to_transform": [0]}, "layers_to_transform"),
        ({"lora_bias": True}, "lora_bias"),
        ({"something_new": 3}, "something_new = 3"),
        ({"init_lora_weights": "pissa"}, "'pissa'"),
        ({"target_modules": "h.*c_attn"}, "target_modules"),
        ({"target_modules": ["c_attn", "c_fc"]}, "c_fc but has no tensors"),
        ({"target_modules": ["c_fc"]}, "tensors of h.0.attn.c_attn, which target_modules does not name"),
        ({"target_modules": []}, "which target_modules does not name"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_name(dora: Path, changes: dict[str, Any], named: str) -> None:
    change_config(dora, **changes)
    with pytest.raises(AdapterError, match=named):
        peft_format.read(dora)


def _without_prefix(tensors: dict[str, Tensor]) -> None:
    for key in list(tensors):
        tensors[key.removeprefix("base_model.model.")] = tensors.pop(key)


def _put(key: str, value: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({key: value})


def _drop(key: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[key]

    return change


OTHER = "base_model.model.transformer"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_without_prefix, r"unexpected tensor transformer\.h\.0"),
        (_drop(f"{FIRST}.lora_B.weight"), r"lacks h\.0\.attn\.c_attn\.lora_B"),
        (_drop(f"{FIRST}.lora_magnitude_vector"), r"lacks h\.0\.attn\.c_attn\.magnitude"),
        (_put(f"{OTHER}.h.3.attn.c_attn.lora_A.weight", torch.ones(4, 32)), r"no tensors of h\.2\.attn\.c_attn"),
        (_put(f"{OTHER}.h.0.mlp.c_fc.lora_A.weight", torch.ones(4, 32)), "target_modules does not name"),
        (_put(f"{OTHER}.wte.lora_embedding_A", torch.ones(4, 9)), "unexpected tensor .*wte"),
        (_put(f"{FIRST}.lora_A.weight", torch.ones(4, 31)), r"shape \(4, 3[12]\)"),
        (_put(f"{FIRST}.lora_B.weight", torch.ones(96, 5)), r"lora_B .* shape \(96, 5\), expected \(96, 4\)"),
        (_put(f"{FIRST}.lora_magnitude_vector", torch.ones(95)), r"magnitude .* shape \(95,\), expected \(96,\)"),
        (_put(f"{FIRST}.lora_A.weight", torch.full((4, 32), float("nan"))), "not all finite"),
        (_put(f"{FIRST}.lora_A.weight", torch.ones(4, 32, dtype=torch.int32)), "int32"),
        (_put(f"{FIRST}.lora_A.weight", torch.ones(4)), r"shape \(4,\)"),
    ],
)
def test_tensors_that_are_no_whole_adapter_are_refused_by_name(
    dora: Path, change: Callable[[dict[str, Tensor]], None], named: str
) -> None:
    change_tensors(dora, change)
    with pytest.raises(AdapterError, match=named):
        peft_format.read(dora)


def test_dora_without_any_magnitudes_is_refused(lora: Path) -> None:
    change_config(lora, use_dora=True)
    with pytest.raises(AdapterError, match="magnitude"):
        peft_format.read(lora)


def test_no_tensors_at_all_are_refused(lora: Path) -> None:
    change_tensors(lora, lambda tensors: tensors.clear())
    with pytest.raises(AdapterError, match="c_attn but has no tensors"):
        peft_format.read(lora)


def test_an_alpha_changed_after_torso_wrote_it_is_refused(shake: Shake, tmp_path: Path) -> None:
    peft_format.write(tmp_path, an_adapter(shake, AdapterConfig(lora_rank=4, alpha=8.0)))
    change_config(tmp_path, lora_alpha=16)
    with pytest.raises(AdapterError, match=r"scaling 2\.0, it says .* scaling 4\.0"):
        peft_format.read(tmp_path)


def test_a_missing_or_broken_file_is_refused_by_name(dora: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"has no adapter_config\.json"):
        peft_format.read(tmp_path / "nothing")
    (dora / peft_format.CONFIG).write_text("[1]")
    with pytest.raises(AdapterError, match="holds a list"):
        peft_format.read(dora)
    for broken in ("{", "[" * 100_000):
        (dora / peft_format.CONFIG).write_text(broken)
        with pytest.raises(AdapterError, match="no readable JSON"):
            peft_format.read(dora)


def test_the_base_s_name_is_a_text(dora: Path) -> None:
    settings = json.loads((dora / peft_format.CONFIG).read_text())
    (dora / peft_format.CONFIG).write_text(json.dumps(settings | {"base_model_name_or_path": 3}))
    with pytest.raises(AdapterError, match="base_model_name_or_path 3"):
        peft_format.named_base(dora)


@pytest.mark.parametrize("name", ["r", "lora_alpha", "lora_dropout", "rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize("value", ["Infinity", "NaN", "1" + "0" * 400])
def test_numbers_that_no_adapter_has_are_refused_by_name(dora: Path, name: str, value: str) -> None:
    settings = json.loads((dora / peft_format.CONFIG).read_text())
    settings[name] = {"c_attn": "it"} if name.endswith("pattern") else "it"
    (dora / peft_format.CONFIG).write_text(json.dumps(settings).replace('"it"', value))
    with pytest.raises(AdapterError, match=f"c_attn|{name}.*Expected a number"):
        peft_format.read(dora)


def test_damaged_tensors_and_pickles_are_refused_by_name(dora: Path) -> None:
    (dora / peft_format.TENSORS).write_bytes(b"damaged")
    with pytest.raises(AdapterError, match="cannot be read"):
        peft_format.read(dora)
    (dora / peft_format.TENSORS).rename(dora / "adapter_model.bin")
    with pytest.raises(AdapterError, match="pickles are not read"):
        peft_format.read(dora)


def test_an_adapter_of_another_model_changes_nothing(shake: Shake, dora: Path) -> None:
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    adapter = peft_format.read(dora)
    parameters = inject(GPT2(config), adapter.config, seed=0)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    with pytest.raises(AdapterError, match=r"lora_A of the adapter has shape \(4, 32\), expected \(4, 16\)"):
        peft_format.load(parameters, adapter)
    parameters.pop("h.1.attn.c_attn.magnitude")
    with pytest.raises(AdapterError, match=r"magnitude, which is not expected"):
        peft_format.load(parameters, adapter)
    assert all(torch.equal(p, before[name]) for name, p in parameters.items())
