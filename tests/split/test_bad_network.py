"""A whole run over a bad network ends with the bits of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.split.bad_network import GOOD, KINDS, behind_bad_network, sometimes
from tests.split.harness import Recipe

from torso.adapters.config import AdapterConfig

STEPS = 9
DORA = AdapterConfig(kind="dora", lora_rank=2, alpha=4.0, dropout=0.1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    whole = Recipe(folder=tmp_path_factory.mktemp("whole") / "run", adapter=DORA, dropout=0.1)
    whole.train(STEPS)
    return whole


def assert_bits_survive(
    folder: Path, base: Path, undisturbed: Recipe, faults: list[str], seed: int, wire: str = "safetensors"
) -> int:
    """Train through the faults and compare; returns how many requests met one."""
    with behind_bad_network(base, 2, sometimes(faults, seed)) as (servers, network):
        run = Recipe(folder=folder, adapter=DORA, dropout=0.1, clients=2, servers=(servers.url,), wire=wire)
        run.train(STEPS)
    assert run.curve() == undisturbed.curve()
    assert run.digest() == undisturbed.digest()
    return network.happened.total() - network.happened[GOOD]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_of_fault_changes_no_bit(
    tmp_path: Path, base: Path, undisturbed: Recipe, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert assert_bits_survive(tmp_path / "run", base, undisturbed, [kind], seed=1) > 10
    assert "Traceback" not in capfd.readouterr().err  # what a network does is no error of the server


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "wire"), [(0, "safetensors"), (1, "json"), (2, "safetensors")])
def test_all_faults_mixed_change_no_bit(tmp_path: Path, base: Path, undisturbed: Recipe, seed: int, wire: str) -> None:
    assert assert_bits_survive(tmp_path / "run", base, undisturbed, KINDS, seed, wire=wire) > 20
