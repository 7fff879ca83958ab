"""A group of ranks, and the few collectives that Torso needs of it.

Data is gathered, never reduced: the addition is Torso's own, in one order (zero-padded sums would turn -0.0 into
+0.0, and gloo adds in an order of its own). Tensors are sent as tensors, so nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torso.errors import GroupError


class Group:
    """`world_size` ranks; one of them alone needs no torch.distributed at all."""

    def __init__(self, rank: int, world_size: int, process_group: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._process_group = process_group

    @classmethod
    def solo(cls) -> Group:
        """A group of one."""
        return cls(0, 1)

    @classmethod
    def from_environment(cls, timeout_s: float = 120.0, cuda: bool = False) -> Group:
        """The group that torchrun's environment variables describe, over gloo; raises GroupError.

        With `cuda` tensors on GPUs go over NCCL, and those of the group's own methods over gloo all the same.
        """
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            raise GroupError(f"the ranks could not form a group: {error}") from error
        return cls(dist.get_rank(), dist.get_world_size(), dist.group.WORLD)

    @classmethod
    def local(cls, store: Any, rank: int, world_size: int, timeout_s: float = 60.0) -> Group:
        """One of several ranks that share a store, e.g. the threads of one process in a test."""
        timeout = timedelta(seconds=timeout_s)
        return cls(rank, world_size, dist.ProcessGroupGloo(store, rank, world_size, timeout))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, by rank; shape and dtype must be the same everywhere."""
        if self.world_size == 1:
            return [tensor]
        source = tensor.detach().contiguous()
        parts = [torch.empty_like(source) for _ in range(self.world_size)]
        self._run(lambda group: group.allgather([parts], [source]))
        return parts

    def all_gather_ints(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's integers, by rank; each may give another number of them."""
        counts = [int(part) for part in self.all_gather(torch.tensor([len(values)]))]
        padded = torch.zeros(max(counts), dtype=torch.int64)
        padded[: len(values)] = torch.tensor(list(values), dtype=torch.int64)
        parts = self.all_gather(padded) if max(counts) else [padded] * self.world_size
        return [part[:count].tolist() for part, count in zip(parts, counts, strict=True)]

    def broadcast_bytes(self, data: bytes | None, source: int = 0) -> bytes:
        """`source`'s bytes on every rank; the other ranks' `data` is ignored."""
        if self.world_size == 1:
            return data or b""
        own = data or b"" if self.rank == source else b""
        size = torch.tensor([len(own)])
        self._run(lambda group: group.broadcast([size], _broadcast_options(source)))
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source and own:
            content.copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        if int(size):
            self._run(lambda group: group.broadcast([content], _broadcast_options(source)))
        return content.numpy().tobytes()

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """`source`'s tensor on every rank; the other ranks' gives shape and dtype, and is overwritten."""
        if self.world_size == 1:
            return tensor
        content = tensor.detach().contiguous()
        self._run(lambda group: group.broadcast([content], _broadcast_options(source)))
        return content

    def barrier(self) -> None:
        """Returns when every rank has come here."""
        self.all_gather(torch.zeros(1))

    def close(self) -> None:
        """Leave the group; only for the group of the environment."""
        if self._process_group is not None and self._process_group is dist.group.WORLD:
            dist.destroy_process_group()
        self._process_group = None

    def _run(self, start: Callable[[Any], Any]) -> None:
        if self._process_group is None:
            raise GroupError("this group is closed")
        try:
            start(self._process_group).wait()
        except RuntimeError as error:
            first_line = str(error).splitlines()[0]
            raise GroupError(f"a collective of rank {self.rank} failed: {first_line}") from error


def _broadcast_options(source: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = source
    options.rootTensor = 0
    return options
