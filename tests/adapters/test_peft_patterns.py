"""Adapters whose layers differ: peft writes them, Torso reads them, computes the same, and writes what peft reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.adapters.conftest import Fixtures
from torch import nn

from torso.adapters import peft_format
from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.errors import AdapterError

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

SETTINGS: dict[str, dict[str, Any]] = {
    "ranks and alphas by pattern": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["c_attn", "mlp.c_fc"],
        "rank_pattern": {"h.0.attn.c_attn": 2, "c_fc": 6},
        "alpha_pattern": {"h.1.mlp.c_fc": 3},
    },
    "targets by expression": {"r": 3, "lora_alpha": 5, "target_modules": r".*\.h\.1\.(attn\.c_attn|mlp\.c_proj)"},
    "dora of some layers": {"r": 3, "lora_alpha": 6, "target_modules": ["h.0.mlp.c_proj", "c_attn"], "use_dora": True},
    "rslora by pattern": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["c_proj"],
        "rank_pattern": {"attn.c_proj": 9},
        "use_rslora": True,
    },
    "every linear layer": {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"},
}


def by_peft(base: Path, folder: Path, **settings: Any) -> Any:
    """peft's model on the fixtures' base, moved away from its start and saved."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=True, **settings)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel.from_pretrained(base).eval(), config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_logits_are_peft_s_and_the_way_back_changes_no_bit(
    peft_fixtures: Fixtures, tmp_path: Path, settings: dict[str, Any]
) -> None:
    theirs = by_peft(peft_fixtures.folder / "base", tmp_path / "theirs", **settings)
    adapter = peft_format.read(tmp_path / "theirs", num_blocks=2)
    ours = peft_fixtures.model()
    peft_format.load(inject(ours, adapter.config, seed=0), adapter)
    with torch.no_grad():
        expected = theirs(peft_fixtures.token_ids).logits
        torch.testing.assert_close(ours(peft_fixtures.token_ids), expected, rtol=1e-5, atol=1e-5)
    peft_format.write(tmp_path / "ours", adapter)
    stored, back = (load_file(tmp_path / name / peft_format.TENSORS) for name in ("theirs", "ours"))
    assert stored.keys() == back.keys()
    assert all(torch.equal(stored[key], back[key]) for key in stored)
    base = transformers.GPT2LMHeadModel.from_pretrained(peft_fixtures.folder / "base").eval()
    again = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(peft_fixtures.token_ids).logits, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_missing_last_blocks_are_noticed_when_the_model_s_size_is_known(
    peft_fixtures: Fixtures, tmp_path: Path
) -> None:
    settings = SETTINGS["targets by expression"] | {"target_modules": r".*\.h\.0\.attn\.c_attn"}
    by_peft(peft_fixtures.folder / "base", tmp_path / "a", **settings)
    path = tmp_path / "a" / peft_format.CONFIG
    path.write_text(path.read_text().replace(r"h\\.0", r"h\\.[01]"))
    peft_format.read(tmp_path / "a")
    with pytest.raises(AdapterError, match=r"no tensors of h\.1\.attn\.c_attn"):
        peft_format.read(tmp_path / "a", num_blocks=2)


def test_an_expression_that_is_none_and_a_pattern_for_nothing_are_refused(
    peft_fixtures: Fixtures, tmp_path: Path
) -> None:
    for changes, named in (
        ({"target_modules": "h.(0"}, "target_modules 'h.\\(0'"),
        ({"rank_pattern": {"h.0.c_attn": 3}}, "rank_pattern for 'h.0.c_attn'"),
        ({"rank_pattern": {"c_attn": "3"}}, "c_attn '3'"),
        ({"rank_pattern": {"c_attn": 3}}, r"shape \(4, 32\), expected \(3, 32\)"),
        ({"alpha_pattern": [3]}, r"alpha_pattern \[3\]"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for file in (peft_fixtures.folder / "lora").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        text = (folder / peft_format.CONFIG).read_text()
        (folder / peft_format.CONFIG).write_text(json.dumps(json.loads(text) | changes))
        with pytest.raises(AdapterError, match=named):
            peft_format.read(folder)


def test_layers_named_one_by_one_get_ranks_and_scalings_of_their_own(
    peft_fixtures: Fixtures, shake: Callable[[dict[str, nn.Parameter]], None]
) -> None:
    config = AdapterConfig(modules=("h.0.attn.c_attn=2:8.0", "h.1.mlp.c_fc=5:10.0"), rslora=True)
    parameters = inject(peft_fixtures.model(), config, seed=0)
    assert {name: tuple(p.shape)[0 if name.endswith("A") else 1] for name, p in parameters.items()} == {
        "h.0.attn.c_attn.lora_A": 2,
        "h.0.attn.c_attn.lora_B": 2,
        "h.1.mlp.c_fc.lora_A": 5,
        "h.1.mlp.c_fc.lora_B": 5,
    }
    assert config.size("h.0.attn.c_attn") == (2, 8.0 / 2.0**0.5)
    assert config.size("h.0.mlp.c_fc") is None
    for module in ("h.0.attn.c_attn=0:8.0", "h.0.attn=2:8.0", "h.0.attn.c_attn=2:x", "h.0.attn.c_attn=2:-1", "c_attn"):
        with pytest.raises(AdapterError, match="modules has"):
            AdapterConfig(modules=(module,))
    with pytest.raises(AdapterError, match=r"h\.0\.attn\.c_attn twice"):
        AdapterConfig(modules=("h.0.attn.c_attn=2:8.0", "h.0.attn.c_attn=3:8.0"))
