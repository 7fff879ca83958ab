"""One party's trainable parameters, their gradients by micro-batch, and their optimizer.

The client's head and tail are one part, the body is another, on a body server or at home; each rank of a group
holds a copy of its part, and all copies stay equal bit for bit because all do the same arithmetic in one order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torso.errors import CheckpointError, GroupError, StateLostError
from torso.parallel.group import Group
from torso.training.config import OptimizerConfig
from torso.training.optimizer import MOMENTS, AdamW


@dataclass(frozen=True)
class Norms:
    """Of the sum over micro-batches, before it is divided: each parameter's squared norm, added in float64."""

    squared: dict[str, float]
    finite: bool


@dataclass(frozen=True)
class Update:
    """What all parties need to make the same update."""

    divisor: float
    """Target tokens of the global batch."""
    clip_factor: float
    learning_rate: float
    skip: bool = False
    """Leave parameters and optimizer as they are; the step counts all the same."""


class TrainablePart:
    """Parameters (float32) by global name, with AdamW and the gradients of the step under way."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], optimizer: OptimizerConfig) -> None:
        self.parameters = dict(parameters)
        self._optimizer = AdamW(self.parameters, optimizer)
        self._gradients: dict[int, Tensor] = {}
        self._combined: dict[str, Tensor] = {}

    @property
    def indices(self) -> list[int]:
        """Micro-batches of this step whose gradients are held here."""
        return sorted(self._gradients)

    def keep(self, index: int, gradients: Sequence[Tensor]) -> None:
        """Hold the gradients (in the parameters' order) of one micro-batch until `combine`."""
        flat = [g.detach().reshape(-1).float() for g in gradients]
        # a part without trainable parameters takes part in steps like any other
        self._gradients[index] = torch.cat(flat).cpu() if flat else torch.zeros(0)

    def discard(self) -> None:
        """Forget the gradients of the step under way."""
        self._gradients.clear()
        self._combined.clear()

    def combine(self, num_micro_batches: int, group: Group, tag: Sequence[int] = ()) -> Norms:
        """Sum the gradients of micro-batches 0 … num - 1 by index, ((g0 + g1) + g2) + …, over all ranks.

        An index that two ranks hold counts once. `tag` must be equal on all ranks (e.g. job and step).
        Raises StateLostError naming the indices that nobody holds, GroupError when the ranks disagree.
        """
        owners = self._owners(num_micro_batches, group, tag)
        gathered = self._gather(owners, group)
        total = gathered[0].clone()
        for index in range(1, num_micro_batches):
            total += gathered[index]
        self._gradients.clear()
        self._combined = self._split(total)
        squared = {name: float(g.double().square().sum()) for name, g in self._combined.items()}
        return Norms(squared, all(value < float("inf") for value in squared.values()))

    def apply(self, update: Update) -> None:
        """Make the update with the combined gradients, divided and clipped; then forget them."""
        if not update.skip:
            self._optimizer.update(self._combined, update.divisor, update.clip_factor, update.learning_rate)
        self.discard()

    def state(self) -> dict[str, Tensor]:
        """Copies of parameters and optimizer on the CPU, by `adapter:NAME`, `exp_avg:NAME`, …"""
        state = {f"adapter:{name}": p.detach().cpu().clone() for name, p in self.parameters.items()}
        for moment, tensors in self._optimizer.moments.items():
            state.update({f"{moment}:{name}": t.cpu().clone() for name, t in tensors.items()})
        return state | {"optimizer_step": torch.tensor([self._optimizer.num_updates])}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state; all of it is checked before anything changes. Raises CheckpointError."""
        expected = self.state()
        check_same_layout(expected, state)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[f"adapter:{name}"])
                for moment in MOMENTS:
                    self._optimizer.moments[moment][name].copy_(state[f"{moment}:{name}"])
        self._optimizer.num_updates = int(state["optimizer_step"])
        self.discard()

    def fingerprint(self, step: int) -> str:
        """SHA-256 over the state and the step, hexadecimal."""
        return fingerprint(self.state(), step)

    def _owners(self, num_micro_batches: int, group: Group, tag: Sequence[int]) -> list[int]:
        """For each index the lowest rank that holds it."""
        held = group.all_gather_ints([len(tag), *tag, *self.indices])
        if any(ints[: len(tag) + 1] != [len(tag), *tag] for ints in held):
            raise GroupError("the ranks of the group came to different collectives")
        sets = [set(ints[len(tag) + 1 :]) for ints in held]
        missing = [i for i in range(num_micro_batches) if not any(i in s for s in sets)]
        if missing:
            raise StateLostError(
                f"no rank holds the gradients of micro-batches {missing}", code="missing_micro_batches"
            )
        return [next(rank for rank, s in enumerate(sets) if i in s) for i in range(num_micro_batches)]

    def _gather(self, owners: Sequence[int], group: Group) -> dict[int, Tensor]:
        """All micro-batches' flat gradients by index, whoever owns them."""
        by_rank = [[i for i, owner in enumerate(owners) if owner == rank] for rank in range(group.world_size)]
        longest = max(len(indices) for indices in by_rank)
        size = sum(p.numel() for p in self.parameters.values())
        own = torch.zeros(longest, size)
        for row, index in enumerate(by_rank[group.rank]):
            own[row] = self._gradients[index]
        parts = group.all_gather(own)
        return {i: parts[rank][row] for rank, indices in enumerate(by_rank) for row, i in enumerate(indices)}

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [p.numel() for p in self.parameters.values()]
        pieces = torch.split(flat, sizes) if sizes else ()
        return {n: piece.view(p.shape) for (n, p), piece in zip(self.parameters.items(), pieces, strict=True)}


def fingerprint(state: Mapping[str, Tensor], step: int) -> str:
    """SHA-256 over (name, dtype, shape, bytes) of the tensors, sorted by name, and the step; hexadecimal."""
    digest = hashlib.sha256(f"step {step}\n".encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_same_layout(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless the state has the names, shapes and dtypes of the expected one."""
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unexpected:
        raise CheckpointError(f"the state to load lacks {missing[:3]} and has unexpected {unexpected[:3]}")
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
            found = f"{tuple(state[name].shape)} {state[name].dtype}"
            raise CheckpointError(f"{name} is {found}, expected {tuple(tensor.shape)} {tensor.dtype}")
