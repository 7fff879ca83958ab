"""Times the pieces of a step in this process: a block, the head of the model, the optimizer."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from torso.adapters.inject import inject
from torso.model.blocks import Block
from torso.model.config import Cuts
from torso.model.loss import target_loss
from torso.model.stages import Body
from torso.parallel.arithmetic import DTYPES
from torso.parallel.group import Group
from torso.parallel.strategy import fast_squared_norm, squared_norm
from torso.planner.costs import Line
from torso.planner.setting import Setting
from torso.training.config import OptimizerConfig
from torso.training.optimizer import AdamW
from torso.training.part import TrainablePart, Update

BLOCKS = 3
"""Blocks that are timed together: one alone would find its weights in the cache."""
LEAST_TIMES, MOST_TIMES = 4, 400
SHARDED_TIMES = 10


def median_seconds(
    work: Callable[[], Any], together: Callable[[], None] = lambda: None, times: int | None = None
) -> float:
    """Of so many repetitions, or of as many as fit into a second, after one that warms up.

    `together` lets ranks begin at once; where `work` is a collective they must agree on `times`.
    """
    work()
    together()
    spent: list[float] = []
    until = time.perf_counter() + 1.0
    least, most = (LEAST_TIMES, MOST_TIMES) if times is None else (times, times)
    while len(spent) < least or (len(spent) < most and time.perf_counter() < until):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def line_through(sizes: tuple[float, float], seconds: tuple[float, float]) -> Line:
    """Latency and time by size from two measurements; neither below zero."""
    slope = max(0.0, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
    return Line(latency_s=max(0.0, seconds[0] - slope * sizes[0]), seconds_per_byte=slope)


def pieces(setting: Setting, together: Callable[[], None], alone: bool = True) -> dict[str, Any]:
    """Fields of `Costs` that need no other process; a rank that is not alone takes norms the fast way."""
    blocks = min(BLOCKS, setting.shape.n_layer)
    body, parameters = _blocks(setting, blocks)
    forward, backward = _block_seconds(setting, body, parameters, blocks, together)
    update, combine = _update_seconds(setting, parameters, together, alone)
    return {
        "block_forward": forward,
        "block_backward": backward,
        "loss": _loss_seconds(setting, together),
        "update": update,
        "combine": combine,
    }


def _blocks(setting: Setting, blocks: int) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Blocks with random weights, and what of them is trained."""
    shape = dataclasses.replace(setting.shape, n_layer=blocks)
    with torch.device("meta"):
        body = Body(shape, Cuts(0, blocks, blocks))
    body = body.to_empty(device="cpu")
    for parameter in body.parameters():
        nn.init.normal_(parameter.data, std=0.02)
    if setting.adapter is None:
        return body, dict(body.named_parameters())
    body = body.to(DTYPES[setting.dtype]).requires_grad_(False)
    return body, inject(body, dataclasses.replace(setting.adapter, modules=()), 0)


def _block_seconds(
    setting: Setting, body: nn.Module, parameters: dict[str, nn.Parameter], blocks: int, together: Callable[[], None]
) -> tuple[float, float]:
    """Forward and backward of one block on one micro-batch."""
    shape = (setting.micro_batch_size, setting.tokens, setting.shape.n_embd)
    x = torch.randn(shape, dtype=DTYPES[setting.dtype]).requires_grad_()
    gradient = torch.randn_like(x)
    spent: list[float] = []

    def work() -> None:
        x.grad = None
        for parameter in parameters.values():  # each step makes its gradients anew
            parameter.grad = None
        started = time.perf_counter()
        y: Tensor = body(x)
        spent.append(time.perf_counter() - started)
        torch.autograd.backward(y, gradient, inputs=[x, *parameters.values()])

    with torch.autocast("cpu", torch.bfloat16, enabled=setting.adapter is None and setting.dtype == "bf16"):
        both = median_seconds(work, together)
    forward = statistics.median(spent[1:])
    return forward / blocks, (both - forward) / blocks


def block_seconds(setting: Setting, together: Callable[[], None]) -> float:
    """Both passes of one block on one micro-batch."""
    blocks = min(BLOCKS, setting.shape.n_layer)
    return sum(_block_seconds(setting, *_blocks(setting, blocks), blocks, together))


def sharded_block_seconds(setting: Setting, mesh: DeviceMesh, together: Callable[[], None]) -> tuple[float, float]:
    """The same in shares, gradients not yet exchanged; and the block's bytes."""
    blocks = min(BLOCKS, setting.shape.n_layer)
    body, _ = _blocks(setting, blocks)
    size = sum(float(p.nbytes) for p in body.parameters()) / blocks
    for part in (*(unit for unit in body.modules() if isinstance(unit, Block)), body):
        fully_shard(part, mesh=mesh)
    body.set_requires_gradient_sync(False)  # type: ignore[operator]
    x = torch.randn(setting.micro_batch_size, setting.tokens, setting.shape.n_embd, dtype=DTYPES[setting.dtype])
    x.requires_grad_()

    def work() -> None:
        y: Tensor = body(x)
        y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]

    with torch.autocast("cpu", torch.bfloat16, enabled=setting.adapter is None and setting.dtype == "bf16"):
        return median_seconds(work, together, times=SHARDED_TIMES) / blocks, size


def _loss_seconds(setting: Setting, together: Callable[[], None]) -> float:
    """Loss of one micro-batch, with its gradients."""
    shape, dtype = setting.shape, DTYPES[setting.dtype]
    wte = (torch.randn(shape.vocab_size, shape.n_embd) * 0.02).to(dtype).requires_grad_(setting.adapter is None)
    hidden = torch.randn(setting.micro_batch_size, setting.tokens, shape.n_embd, dtype=dtype).requires_grad_()
    ids = torch.randint(shape.vocab_size, (setting.micro_batch_size, setting.tokens))
    mask = torch.zeros_like(ids, dtype=torch.bool)
    flat = torch.zeros(setting.micro_batch_size * (setting.tokens - 1), dtype=torch.bool)
    flat[: setting.target_rows] = True
    mask[:, 1:] = flat.view(setting.micro_batch_size, -1)

    def work() -> None:
        wte.grad = hidden.grad = None
        roots = [target_loss(hidden, wte, ids, mask)]
        if wte.requires_grad:  # the embeddings are the LM head's weights: their gradients meet
            roots.append(functional.embedding(ids, wte).sum())
        torch.autograd.backward(roots)

    return median_seconds(work, together)


def _update_seconds(
    setting: Setting, parameters: dict[str, nn.Parameter], together: Callable[[], None], alone: bool
) -> tuple[Line, Line]:
    """The optimizer, and the sum of kept gradients, by bytes of what is trained; the number of tensors grows alike."""
    size = 4.0 * sum(parameter.numel() for parameter in parameters.values())
    if setting.adapter is None:
        return Line(latency_s=0.0, seconds_per_byte=_adamw_seconds(parameters, together, alone) / size), Line(
            latency_s=0.0, seconds_per_byte=0.0
        )
    gradients = [torch.randn_like(parameter) for parameter in parameters.values()]
    part = TrainablePart(parameters, OptimizerConfig())
    few, many = (_combine_seconds(part, gradients, count, together) for count in (1, 5))
    combine = max(0.0, many - few) / 4.0
    return Line(latency_s=0.0, seconds_per_byte=max(0.0, few - combine) / size), Line(
        latency_s=0.0, seconds_per_byte=combine / size
    )


def _combine_seconds(part: TrainablePart, gradients: list[Tensor], count: int, together: Callable[[], None]) -> float:
    """Of keeping and adding so many micro-batches' gradients, and of the update."""

    def work() -> None:
        for index in range(count):
            part.keep(index, gradients)
        part.combine(count, Group.solo())
        part.apply(Update(divisor=1.0, clip_factor=1.0, learning_rate=1e-9))

    return median_seconds(work, together)


def _adamw_seconds(parameters: dict[str, nn.Parameter], together: Callable[[], None], alone: bool) -> float:
    """Of all of these parameters: norms in float64, and the update, as a whole model makes them."""
    norm = squared_norm if alone else fast_squared_norm
    pieces = {name: parameter.detach() for name, parameter in parameters.items()}
    gradients = {name: torch.zeros_like(piece) for name, piece in pieces.items()}
    optimizer = AdamW(pieces, OptimizerConfig())

    def work() -> None:
        for gradient in gradients.values():
            norm(gradient)
        optimizer.update(gradients, divisor=1.0, clip_factor=1.0, learning_rate=1e-9)

    return median_seconds(work, together)


def resident_bytes() -> float:
    """Of this process now."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024.0
