"""A look at the backend before it is trusted: collectives with known values.

Backends have been wrong without an error: before torch 2.13 gloo's AVG was a sum.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torso.errors import ConfigError

LENGTH = 1009
"""Elements a rank; no multiple of any number of ranks, so that chunks are uneven."""


def check_reductions(device: torch.device) -> None:
    """Raise ConfigError unless the collectives that the strategies use give what they should, on every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = torch.stack([_row(one, ranks) for one in range(ranks)])  # [W, W × LENGTH], by rank
    own, total = rows[rank].to(device), rows.sum(dim=0)
    mine = slice(rank * LENGTH, (rank + 1) * LENGTH)
    summed, share = own.clone(), own.new_empty(LENGTH)
    gathered, exchanged = own.new_empty(rows.numel()), torch.empty_like(own)
    dist.all_reduce(summed)
    dist.reduce_scatter_single(share, own)
    dist.all_gather_single(gathered, own)
    dist.all_to_all_single(exchanged, own)
    _compare("all_reduce", summed, total)
    _compare("reduce_scatter", share, total[mine])
    _compare("all_gather", gathered, rows.reshape(-1))
    _compare("all_to_all", exchanged, rows[:, mine].reshape(-1))


def _row(rank: int, ranks: int) -> Tensor:
    """Whole numbers, whose sums are exact in float32 in any order."""
    return torch.arange(ranks * LENGTH, dtype=torch.float32) % 97 + 100.0 * rank


def _compare(name: str, found: Tensor, expected: Tensor) -> None:
    if not torch.equal(found.cpu(), expected):
        place = int((found.cpu() != expected).nonzero()[0])
        values = f"{float(found[place]):g} where {float(expected[place]):g} is right"
        raise ConfigError(
            f"{name} of the backend {dist.get_backend()} gives {values}",
            "Use another build of torch, or --strategy single.",
        )
