"""FSDP and HSDP: parameters, gradients and optimizer in shares, by torch's `fully_shard`.

HSDP is a mesh of two dimensions: ranks i·S … i·S + S - 1 share one copy, and there are W / S copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor

from torso.parallel.group import Group
from torso.parallel.memory import return_large_tensors
from torso.parallel.order import add_in_order
from torso.parallel.strategy import Wave, fast_squared_norm, squared_norm
from torso.parallel.traffic import Counter, Traffic


class FullySharded:
    """See Strategy; `units` are gathered one by one, the module around them as one more.

    Fast: gradients stay where they are until the last wave, then one reduce-scatter a unit. Deterministic: each wave's
    gradients are exchanged, and each rank adds its share of them in order.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module],
        group: Group,
        *,
        device_type: str,
        deterministic: bool,
        shard_size: int,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """`compute_dtype` is what parameters are gathered in; gradients are always added in float32."""
        self._group, self._deterministic, self._counter = group, deterministic, Counter()
        self._shard_size = shard_size
        if device_type == "cpu":
            return_large_tensors()
        mesh = _mesh(device_type, group.world_size, shard_size)
        copies = mesh.get_group("copy") if shard_size < group.world_size else None
        # the ordered addition is over all copies already: what torch sees is one of them
        seen = mesh["shard"] if deterministic or copies is None else mesh
        policy = MixedPrecisionPolicy(compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for part in (*units, module):
            fully_shard(part, mesh=seen, mp_policy=policy)
        self._module, self._wave = module, Wave(0, is_last=False)
        self._sums: list[_OrderedReduceScatter] = []
        for part in module.modules():
            if isinstance(part, FSDPModule):
                self._take_over(part, copies)
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.pieces: Mapping[str, Tensor] = {name: _local(p.detach()) for name, p in self._parameters.items()}

    def loss(self, *inputs: Tensor) -> Tensor:
        """See Strategy."""
        loss: Tensor = self._module(*inputs)
        return loss

    @contextmanager
    def wave(self, wave: Wave) -> Iterator[None]:
        """See Strategy."""
        self._wave = wave
        assert isinstance(self._module, FSDPModule)
        self._module.set_requires_gradient_sync(wave.is_last or self._deterministic)
        if self._deterministic and self._shard_size > 1:
            self._forget_local()  # the ordered sum so far comes out of the next reduction
        yield

    def gradients(self) -> dict[str, Tensor]:
        """See Strategy."""
        found = {name: p.grad for name, p in self._parameters.items()}
        return {n: torch.zeros_like(self.pieces[n]) if g is None else _local(g) for n, g in found.items()}

    def squared_norms(self, gradients: Mapping[str, Tensor]) -> dict[str, float]:
        """See Strategy. In order means over the whole gradient: its shares' norms would add up to other bits."""
        if self._deterministic:
            return {name: squared_norm(self.whole(name, share)) for name, share in gradients.items()}
        own = torch.tensor([fast_squared_norm(share) for share in gradients.values()], dtype=torch.float64)
        self._counter.exchange(own.nbytes * self._group.world_size, self._group.world_size)
        shares = self._group.all_gather(own)[: self._shard_size]
        return dict(zip(gradients, torch.stack(shares).sum(dim=0).tolist(), strict=True))

    def discard(self) -> None:
        """See Strategy."""
        self._forget_local()
        for one in self._sums:
            one.total = None

    def whole(self, name: str, share: Tensor) -> Tensor:
        """See Strategy."""
        like: Any = self._parameters[name]
        self._counter.exchange(like.numel() * share.element_size(), self._shard_size)
        laid_out = DTensor.from_local(
            share, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return laid_out.full_tensor()

    def piece(self, name: str, whole: Tensor) -> Tensor:
        """See Strategy."""
        chunks, place = whole.chunk(self._shard_size), self._group.rank % self._shard_size
        return chunks[place] if place < len(chunks) else whole[:0]

    def traffic(self) -> Traffic:
        """See Strategy."""
        return self._counter.read()

    def _take_over(self, part: FSDPModule, copies: dist.ProcessGroup | None) -> None:
        """Sums in place of means (neither setting recurses), and collectives that are counted."""
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        part.set_custom_all_gather(_CountedAllGather(self._counter))
        if self._deterministic:
            self._sums.append(_OrderedReduceScatter(self._counter, copies, lambda: self._wave.num_real))
            part.set_custom_reduce_scatter(self._sums[-1])
            return
        part.set_custom_reduce_scatter(_CountedReduceScatter(self._counter))
        if copies is not None:
            ranks = copies.size()
            part.set_all_reduce_hook(lambda reduced: self._counter.all_reduce(reduced.nbytes, ranks))

    def _forget_local(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None


def _mesh(device_type: str, world_size: int, shard_size: int) -> DeviceMesh:
    shape = (world_size // shard_size, shard_size)
    return init_device_mesh(device_type, shape, mesh_dim_names=("copy", "shard"))


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    local: Tensor = tensor.to_local()
    return local


class _Allocating:
    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _CountedAllGather(_Allocating, AllGather):
    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self._counter.exchange(output_tensor.nbytes, group.size())
        work: dist.Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class _CountedReduceScatter(_Allocating, ReduceScatter):
    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        self._counter.exchange(input_tensor.nbytes, group.size())
        work: dist.Work | None = dist.reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
        return work


class _OrderedReduceScatter(_Allocating, ReduceScatter):
    """This rank's share of all gradients of the step so far, added in order; one for each unit."""

    def __init__(self, counter: Counter, copies: dist.ProcessGroup | None, num_real: Callable[[], int]) -> None:
        self._counter, self._copies, self._num_real = counter, copies, num_real
        self.total: Tensor | None = None

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        self._counter.exchange(input_tensor.nbytes, group.size())
        copies = [received]
        if self._copies is not None:
            copies = [torch.empty_like(received) for _ in range(self._copies.size())]
            dist.all_gather(copies, received, group=self._copies)
            self._counter.exchange(received.nbytes * len(copies), len(copies))
        by_rank = [share for copy in copies for share in copy.view(group.size(), -1)]
        self.total = add_in_order(self.total, by_rank[: self._num_real()])
        output_tensor.copy_(self.total)
