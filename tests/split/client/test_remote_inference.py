"""Evaluation and decoding through a server equal those at home, also over a network that loses answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
import torch
from tests.split.client.stand_ins import LosesAnswers, Wiretap, over
from tests.split.harness import CONFIG, CUTS, SEED, TRAINING, Recipe, Servers, examples
from torch import Tensor

from torso.adapters.inject import inject
from torso.data.micro_batches import BatchPlan
from torso.errors import ServerError
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.model import CachedModel, InferenceMiddle, LocalMiddle
from torso.evaluation.perplexity import perplexity
from torso.model.stages import Body, Head, Tail
from torso.model.weights import RandomWeights, build
from torso.split.client.remote_inference import RemoteInference
from torso.training.config import OptimizerConfig
from torso.training.part import TrainablePart

PROMPTS = [list(example.prompt_ids) for example in examples(7)]
RECIPE = Recipe(folder=Path())


def model(middle: InferenceMiddle) -> CachedModel:
    source = RandomWeights(CONFIG, SEED)
    head, tail = build(Head, source, CUTS), build(Tail, source, CUTS)
    return CachedModel(head, middle, tail, CUTS, torch.device("cpu"))


def adapted_body() -> tuple[Body, TrainablePart]:
    """A body whose adapter matters."""
    made = build(Body, RandomWeights(CONFIG, SEED), CUTS)
    part = TrainablePart(inject(made, RECIPE.adapter, 3), OptimizerConfig())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in part.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return made, part


@pytest.fixture(scope="module")
def body() -> tuple[Body, TrainablePart]:
    return adapted_body()


@pytest.fixture(params=["steady", "lossy"])
def network(request: pytest.FixtureRequest) -> httpx.BaseTransport:
    return Wiretap() if request.param == "steady" else LosesAnswers()


@pytest.fixture
def remote(pair: Servers, network: httpx.BaseTransport, body: tuple[Body, TrainablePart]) -> Iterator[RemoteInference]:
    transport = over(network)
    with RemoteInference(RECIPE.spec(), (pair.url,), transport, 4, body[1].state()) as middle:
        yield middle
    transport.close()


@pytest.mark.parametrize("decoding", ["greedy", "beam", "sample"])
def test_cached_decoding_equals_that_at_home(
    remote: RemoteInference, body: tuple[Body, TrainablePart], decoding: Literal["greedy", "beam", "sample"]
) -> None:
    config = DecodingConfig(decoding=decoding, max_new_tokens=6, batch_size=4, beams=3)
    local = decode(model(LocalMiddle(body[0], CUTS)), PROMPTS, 60, config)
    assert decode(model(remote), PROMPTS, 60, config) == local
    assert len({tuple(output) for output in local}) > 1


def test_perplexity_equals_that_at_home(remote: RemoteInference, body: tuple[Body, TrainablePart]) -> None:
    batches = BatchPlan(examples(), 3, TRAINING.global_batch_size, TRAINING.micro_batch_size).step(1).micro_batches
    local = perplexity(model(LocalMiddle(body[0], CUTS)), batches)
    assert perplexity(model(remote), batches) == local
    assert math.isfinite(local.value)


def test_rows_of_a_batch_can_be_left_out(remote: RemoteInference, body: tuple[Body, TrainablePart]) -> None:
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    logits = []
    for middle in (LocalMiddle(body[0], CUTS), remote):
        with torch.no_grad():
            decoding = model(middle).start(3)
            decoding.forward(prompt, [3, 2, 3])
            logits.append(decoding.forward(torch.tensor([[1], [2]]), [1, 1], rows=[2, 0]))
            decoding.close()
    assert torch.equal(*logits)


def test_nothing_is_left_on_the_server_afterwards(pair: Servers, body: tuple[Body, TrainablePart]) -> None:
    transport = over(Wiretap())
    before = [worker.num_jobs() for worker in pair.workers]
    with RemoteInference(RECIPE.spec(), (pair.url,), transport, 4, body[1].state()) as middle:
        decode(model(middle), PROMPTS[:2], 60, DecodingConfig(max_new_tokens=2))
        jobs = [worker.job(middle._job) for worker in pair.workers]
        assert all(not job.generations for job in jobs)
    assert [worker.num_jobs() for worker in pair.workers] == before
    transport.close()


def test_a_decoding_cannot_grow_beyond_the_models_positions(remote: RemoteInference) -> None:
    generation = remote.open(1)
    for _ in range(2):
        generation.forward(torch.zeros(1, 16, CONFIG.n_embd), [16])
    with pytest.raises(ServerError, match="33 columns") as caught:
        generation.forward(torch.zeros(1, 1, CONFIG.n_embd), [1])
    assert caught.value.code == "too_long"
    generation.close()


CHUNK = torch.randn(2, 3, CONFIG.n_embd, generator=torch.Generator().manual_seed(2))
WRONG: list[tuple[Tensor, list[int] | None]] = [(CHUNK, [0, 2]), (CHUNK[:1], None)]


@pytest.mark.parametrize(("chunk", "rows"), WRONG, ids=["rows", "batch"])
def test_a_chunk_that_does_not_fit_leaves_the_cache_as_it_was(
    remote: RemoteInference, chunk: Tensor, rows: list[int] | None
) -> None:
    right, wrong = remote.open(2), remote.open(2)
    for generation in (right, wrong):
        generation.forward(CHUNK, [3, 2])
    with pytest.raises(ServerError):
        wrong.forward(chunk, [3] * len(chunk), rows)
    assert torch.equal(wrong.forward(CHUNK, [3, 3]), right.forward(CHUNK, [3, 3]))
    right.close()
    wrong.close()


def test_a_cache_that_stands_elsewhere_is_built_again(remote: RemoteInference) -> None:
    right, wrong = remote.open(2), remote.open(2)
    for generation in (right, wrong):
        generation.forward(CHUNK, [3, 2])
    wrong._position = 2
    assert torch.equal(wrong.forward(CHUNK, [3, 3]), right.forward(CHUNK, [3, 3]))
    right.close()
    wrong.close()
