"""DDP: the whole module on every rank, gradients exchanged by torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from torso.parallel.order import add_in_order
from torso.parallel.strategy import Wave, fast_squared_norm, gradients_of, squared_norm
from torso.parallel.traffic import Counter, Traffic


class DistributedData:
    """See Strategy. Fast: one all-reduce a step. Deterministic: each wave's gradients are gathered, added in order."""

    def __init__(self, module: nn.Module, *, deterministic: bool) -> None:
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.pieces: Mapping[str, Tensor] = {name: p.detach() for name, p in self._parameters.items()}
        self._deterministic, self._counter = deterministic, Counter()
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._wave = Wave(0, is_last=False)
        # every rank has built the same module, so nothing needs to be sent first
        self._ddp = DistributedDataParallel(
            module, forward_sync_buffers=False, gradient_as_bucket_view=True, init_sync=False
        )
        exchange = self._add_in_order if deterministic else self._all_reduce
        # DDP refuses a hook that says what it takes unless it says it in DDP's own words
        self._ddp.register_comm_hook(None, lambda state, bucket: exchange(bucket))

    def loss(self, *inputs: Tensor) -> Tensor:
        """See Strategy."""
        loss: Tensor = self._ddp(*inputs)
        return loss

    @contextmanager
    def wave(self, wave: Wave) -> Iterator[None]:
        """See Strategy."""
        self._wave = wave
        if self._deterministic:
            self._forget_local()  # what is gathered is one micro-batch's gradient
        if wave.is_last or self._deterministic:
            yield
        else:
            with self._ddp.no_sync():
                yield

    def gradients(self) -> dict[str, Tensor]:
        """See Strategy."""
        if not self._deterministic:
            return gradients_of(self._parameters)
        return {name: self._sums[p].view_as(p) for name, p in self._parameters.items()}

    def squared_norms(self, gradients: Mapping[str, Tensor]) -> dict[str, float]:
        """See Strategy."""
        norm = squared_norm if self._deterministic else fast_squared_norm
        return {name: norm(gradient) for name, gradient in gradients.items()}

    def discard(self) -> None:
        """See Strategy."""
        self._sums.clear()
        self._forget_local()

    def whole(self, name: str, share: Tensor) -> Tensor:
        """See Strategy."""
        return share

    def piece(self, name: str, whole: Tensor) -> Tensor:
        """See Strategy."""
        return whole

    def traffic(self) -> Traffic:
        """See Strategy."""
        return self._counter.read()

    def _forget_local(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def _all_reduce(self, bucket: Any) -> Future[Tensor]:
        """A sum, not DDP's own mean: the step divides once, by its target tokens."""
        buffer = bucket.buffer()
        self._counter.all_reduce(buffer.nbytes, dist.get_world_size())
        done: Any = dist.all_reduce(buffer, async_op=True)
        future: Future[Tensor] = done.get_future().then(lambda result: result.value()[0])
        return future

    def _add_in_order(self, bucket: Any) -> Future[Tensor]:
        """By parameter, for DDP cuts its buckets anew after the first backward. The buffer itself is not looked at."""
        buffer = bucket.buffer()
        wave = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
        dist.all_gather(wave, buffer)
        self._counter.exchange(buffer.nbytes * len(wave), len(wave))
        sizes = [gradient.numel() for gradient in bucket.gradients()]
        by_rank = [torch.split(gathered, sizes) for gathered in wave[: self._wave.num_real]]
        for parameter, gradients in zip(bucket.parameters(), zip(*by_rank, strict=True), strict=True):
            self._sums[parameter] = add_in_order(self._sums.get(parameter), gradients)
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        future.set_result(buffer)
        return future
