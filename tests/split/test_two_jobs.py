"""Two jobs at once on the same two workers, one of them killed and resumed over and over."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from tests.split.client.stand_ins import Killed, Mortal, over
from tests.split.harness import Recipe, Servers

from torso.adapters.config import AdapterConfig
from torso.split.client.transport import Transport
from torso.training.config import TrainingConfig

LORA = AdapterConfig(kind="lora", lora_rank=2, alpha=4.0, dropout=0.1)
OTHER = TrainingConfig(global_batch_size=6, micro_batch_size=2, seed=8, checkpoint_every_steps=3)
STEPS = 24


def live_and_die(folder: Path, url: str, seed: int) -> tuple[Recipe, int]:
    """Train until a life is long enough; returns the run and how many were not."""
    chance, deaths = random.Random(seed), 0

    def connect(servers: tuple[str, ...], timeout: float, media_type: str) -> Transport:
        return over(Mortal(chance.randrange(5, 45), answered=chance.random() < 0.5), media_type)

    run = Recipe(folder=folder, adapter=LORA, dropout=0.1, training=OTHER, servers=(url,), connect=connect)
    while True:
        try:
            run.train(STEPS)
            return run, deaths
        except Killed:
            deaths += 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_both_end_with_the_bits_that_they_get_alone(tmp_path: Path, pair: Servers, seed: int) -> None:
    alone = Recipe(folder=tmp_path / "alone", dropout=0.1)
    other_alone = Recipe(folder=tmp_path / "other-alone", adapter=LORA, dropout=0.1, training=OTHER)
    alone.train(STEPS)
    other_alone.train(STEPS)

    steady = Recipe(folder=tmp_path / "steady", dropout=0.1, clients=2, servers=(pair.url,))
    thread = threading.Thread(target=lambda: steady.train(STEPS))
    thread.start()
    other, deaths = live_and_die(tmp_path / "other", pair.url, seed)
    thread.join()

    assert deaths > 3
    assert (steady.curve(), steady.digest()) == (alone.curve(), alone.digest())
    assert (other.curve(), other.digest()) == (other_alone.curve(), other_alone.digest())
