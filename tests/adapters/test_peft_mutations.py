"""Folders that peft loads without an error although something is wrong with them: each is refused here, by name.

Every row is put to peft too, so that the table stays a list of what peft accepts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.adapters.conftest import Fixtures
from torch import Tensor

from torso.adapters import peft_format
from torso.errors import AdapterError

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

Tensors = dict[str, Tensor]
GONE = object()
BLOCK = "base_model.model.transformer.h.0"
A, MAGNITUDE = f"{BLOCK}.attn.c_attn.lora_A.weight", f"{BLOCK}.attn.c_attn.lora_magnitude_vector"

CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("dora", {"use_dora": GONE}, "holds DoRA magnitudes"),
    ("dora", {"use_dora": False}, "holds DoRA magnitudes"),
    ("dora", {"use_dora": None}, "holds DoRA magnitudes"),
    ("lora", {"use_dora": True}, "magnitude"),
    ("lora", {"lora_alpha": GONE}, "lora_alpha None"),
    ("lora", {"lora_alpha": -8}, "alpha is -8"),
    ("lora", {"lora_alpha": 0}, "alpha is 0"),
    ("lora", {"fan_in_fan_out": False}, "fan_in_fan_out False"),
    ("lora", {"fan_in_fan_out": GONE}, "fan_in_fan_out None"),
    ("lora", {"target_modules": None}, "target_modules None"),
    ("lora", {"target_modules": GONE}, "target_modules None"),
    ("lora", {"target_modules": ["c_attn", "c_fc"]}, "no tensors of h.0.mlp.c_fc"),
    ("lora", {"target_modules": ["c_fc"]}, "which target_modules does not name"),
    ("lora", {"target_modules": ["c_attn", "lm_head"]}, "target lm_head"),
    ("lora", {"target_modules": ["c_attn", "wte"]}, "target wte"),
    ("lora", {"target_modules": r".*\.h\.0\.attn\.c_attn"}, "tensors of h.1.attn.c_attn, which"),
    ("lora", {"layers_to_transform": [0]}, "layers_to_transform"),
    ("lora", {"exclude_modules": ["h.1.attn.c_attn"]}, "exclude_modules"),
    ("lora", {"rank_pattern": {"h.9.attn.c_attn": 2}}, "rank_pattern for 'h.9.attn.c_attn'"),
    ("lora", {"alpha_pattern": {"nothing": 2}}, "alpha_pattern for 'nothing'"),
    ("lora", {"bias": "all"}, "trains biases"),
    ("lora", {"bias": "lora_only"}, "trains biases"),
    ("lora", {"lora_bias": True}, "lora_bias"),
    ("lora", {"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
    ("lora", {"peft_type": "IA3"}, "peft_type 'IA3'"),
    ("lora", {"init_lora_weights": "pissa"}, "'pissa'"),
    ("lora", {"use_qalora": True}, "use_qalora"),
    ("lora", {"target_parameters": ["x"]}, "target_parameters"),
    ("lora", {"ensure_weight_tying": True}, "ensure_weight_tying"),
    ("lora", {"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
    ("lora", {"velora_config": {"x": 1}}, "velora_config"),
    ("lora", {"corda_config": {"x": 1}}, "corda_config"),
    ("lora", {"eva_config": {"rho": 2.0}}, "eva_config"),
    ("lora", {"loftq_config": {"loftq_bits": 4}}, "loftq_config"),
    ("lora", {"auto_mapping": {"base_model_class": "LlamaForCausalLM"}}, "'LlamaForCausalLM', by its auto_mapping"),
    ("lora", {"something_new": 3}, "something_new"),
]

TENSORS: list[tuple[str, Callable[[Tensors], Tensors], str]] = [
    ("lora", lambda t: {key.removeprefix("base_model.model."): v for key, v in t.items()}, "unexpected tensor trans"),
    ("lora", lambda t: {key.replace("_A.", "_A.default."): v for key, v in t.items()}, "unexpected tensor"),
    ("lora", lambda t: {key.replace("lora_A", "lora_a"): v for key, v in t.items()}, "unexpected tensor"),
    ("lora", lambda t: {key: v for key, v in t.items() if key != A}, "lacks h.0.attn.c_attn.lora_A"),
    ("lora", lambda t: {key: v for key, v in t.items() if ".h.1." not in key}, "no tensors of h.1"),
    ("lora", lambda t: {}, "no tensors of h.0"),
    ("dora", lambda t: {key: v for key, v in t.items() if key != MAGNITUDE}, "lacks h.0.attn.c_attn.magnitude"),
    ("dora", lambda t: {k + ".weight" * k.endswith("_vector"): v for k, v in t.items()}, "unexpected tensor"),
    ("lora", lambda t: t | {MAGNITUDE: torch.ones(96)}, "holds DoRA magnitudes"),
    ("lora", lambda t: t | {A.replace("h.0", "h.7"): torch.ones(4, 32)}, "h.7.attn.c_attn"),
    ("lora", lambda t: t | {A.replace("attn.c_attn", "mlp.c_fc"): torch.ones(4, 32)}, "tensors of h.0.mlp.c_fc"),
    ("lora", lambda t: t | {f"{BLOCK}.attn.c_attn.lora_B.bias": torch.ones(96)}, "unexpected tensor"),
    ("lora", lambda t: t | {"base_model.model.transformer.wte.lora_embedding_A": torch.ones(4, 9)}, "unexpected"),
    ("lora", lambda t: t | {A: torch.full((4, 32), torch.nan)}, "not all finite"),
    ("lora", lambda t: t | {A: torch.full((4, 32), torch.inf)}, "not all finite"),
    ("lora", lambda t: t | {A: torch.full((4, 32), 1e300, dtype=torch.float64)}, "not all finite numbers in float32"),
    ("lora", lambda t: t | {A: torch.ones(4, 32, dtype=torch.int32)}, "int32"),
    ("lora", lambda t: t | {A: torch.ones(4, 32).to(torch.float8_e4m3fn)}, "float8"),
]

STAMPED: list[dict[str, Any]] = [
    {"lora_alpha": 16},
    {"use_rslora": True},
    {"alpha_pattern": {"h.0.attn.c_attn": 2}},
]


def change(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / peft_format.CONFIG
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not GONE}))


@pytest.fixture
def folder(peft_fixtures: Fixtures, tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str) -> Path:
        for file in (peft_fixtures.folder / name).iterdir():
            shutil.copyfile(file, tmp_path / file.name)
        return tmp_path

    return copied


@pytest.fixture(scope="module")
def model(peft_fixtures: Fixtures) -> Callable[[], Any]:
    base = transformers.GPT2LMHeadModel.from_pretrained(peft_fixtures.folder / "base")

    def fresh() -> Any:
        copy = transformers.GPT2LMHeadModel(base.config)
        copy.load_state_dict(base.state_dict())
        return copy

    return fresh


def is_refused_here_only(folder: Path, model: Callable[[], Any], named: str) -> None:
    peft.PeftModel.from_pretrained(model(), folder)
    with pytest.raises(AdapterError) as caught:
        peft_format.read(folder, num_blocks=2)
    assert named in str(caught.value)


@pytest.mark.parametrize(("name", "changes", "named"), CONFIGS)
def test_settings(
    folder: Callable[[str], Path], model: Callable[[], Any], name: str, changes: dict[str, Any], named: str
) -> None:
    adapter = folder(name)
    change(adapter, changes)
    is_refused_here_only(adapter, model, named)


@pytest.mark.parametrize(("name", "changed", "named"), TENSORS)
def test_tensors(
    folder: Callable[[str], Path],
    model: Callable[[], Any],
    name: str,
    changed: Callable[[Tensors], Tensors],
    named: str,
) -> None:
    path = folder(name) / peft_format.TENSORS
    save_file(changed(load_file(path)), path)
    is_refused_here_only(path.parent, model, named)


def test_a_setting_that_is_there_twice(folder: Callable[[str], Path], model: Callable[[], Any]) -> None:
    path = folder("lora") / peft_format.CONFIG
    path.write_text(path.read_text().replace('"lora_alpha": 8', '"lora_alpha": 8, "lora_alpha": 16'))
    is_refused_here_only(path.parent, model, "lora_alpha is there twice")


@pytest.mark.parametrize("changes", STAMPED)
def test_settings_of_a_folder_that_torso_wrote(
    folder: Callable[[str], Path], model: Callable[[], Any], changes: dict[str, Any]
) -> None:
    adapter = folder("lora")
    written = adapter / "torso"
    peft_format.write(written, peft_format.read(adapter))
    change(written, changes)
    is_refused_here_only(written, model, "was changed")
    # in a folder without Torso's stamp nothing says what the right value was: it is read as it stands
    before = peft_format.read(adapter).config
    change(adapter, changes)
    assert peft_format.read(adapter).config != before


def test_tensors_of_a_folder_that_torso_wrote(folder: Callable[[str], Path], model: Callable[[], Any]) -> None:
    adapter = folder("dora")
    written = adapter / "torso"
    peft_format.write(written, peft_format.read(adapter))
    with safe_open(written / peft_format.TENSORS, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(written / peft_format.TENSORS)
    save_file(tensors | {A: tensors[A] * 2.0}, written / peft_format.TENSORS, metadata)
    is_refused_here_only(written, model, "was changed since Torso wrote it")
