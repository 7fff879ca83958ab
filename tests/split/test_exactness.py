"""Split equals whole, and stopped equals undisturbed, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.split.harness import Recipe, base_folder, serving

from torso.adapters.config import AdapterConfig

LORA = AdapterConfig(kind="lora", lora_rank=2, alpha=4.0, dropout=0.1)
DORA = AdapterConfig(kind="dora", lora_rank=2, alpha=4.0)


@pytest.mark.parametrize(("adapter", "dropout"), [(LORA, 0.1), (DORA, 0.0)])
@pytest.mark.parametrize(("clients", "workers"), [(1, 1), (2, 2), (3, 2)])
def test_a_split_run_gives_the_whole_runs_bits(
    tmp_path: Path, adapter: AdapterConfig, dropout: float, clients: int, workers: int
) -> None:
    whole = Recipe(folder=tmp_path / "whole", adapter=adapter, dropout=dropout)
    whole.train(6)
    with serving(base_folder(tmp_path / "base"), workers) as servers:
        split = Recipe(
            folder=tmp_path / "split", adapter=adapter, dropout=dropout, clients=clients, servers=(servers.url,)
        )
        split.train(6)
    assert split.curve() == whole.curve()
    assert split.digest() == whole.digest()


@pytest.mark.parametrize("module", ["h.0.attn.c_attn", "h.2.mlp.c_fc", "h.3.attn.c_proj"])
def test_an_adapter_of_the_head_the_body_or_the_tail_alone_trains_the_same_bits(tmp_path: Path, module: str) -> None:
    adapter = AdapterConfig(kind="dora", modules=(f"{module}=3:4.0",))
    whole = Recipe(folder=tmp_path / "whole", adapter=adapter)
    whole.train(4)
    with serving(base_folder(tmp_path / "base"), 1) as servers:
        split = Recipe(folder=tmp_path / "split", adapter=adapter, servers=(servers.url,))
        split.train(4)
    assert split.curve() == whole.curve()
    assert split.digest() == whole.digest()
    assert all(norm > 0.0 for _, _, norm in whole.curve())
