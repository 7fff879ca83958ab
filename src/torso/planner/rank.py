"""One process that measures: `python -m torso.planner.rank REQUEST.json OUT.json`, alone or under the agent.

All ranks do the same at the same time, so that what they take from each other (cores, memory, the link) is in the
figures.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from torso.adapters.config import AdapterConfig
from torso.model.config import Cuts, GPT2Config
from torso.parallel.arithmetic import set_threads
from torso.parallel.group import Group
from torso.parallel.memory import return_large_tensors
from torso.parallel.rank import StopRequest, end_rank
from torso.planner.costs import Costs, Line
from torso.planner.echo import wire_lines
from torso.planner.hardware import Device, Link
from torso.planner.measure import block_seconds, line_through, median_seconds, pieces, sharded_block_seconds
from torso.planner.setting import Setting

SMALL, LARGE = 1 << 16, 1 << 24
"""Bytes of the two collectives that a line is drawn through."""
VOTES = 6
"""Small collectives that a step of the loop makes besides: votes, counts of results, traffic."""
NARROW = 16
"""Width of a block in which nothing but calls takes time."""
LOG_S = 1e-3
"""What a step's line in the log takes."""


def main(request: Path, out: Path) -> None:
    """Measure, and write (rank 0 alone) the costs."""
    document = json.loads(request.read_text(encoding="utf-8"))
    setting = setting_of(document["setting"])
    set_threads(document["threads"])
    group = Group.from_environment() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Group.solo()
    costs = measure(setting, group)
    if group.rank == 0:
        out.write_text(json.dumps(dataclasses.asdict(costs)), encoding="utf-8")
    group.barrier()
    group.close()


def measure(setting: Setting, group: Group) -> Costs:
    """All pieces; collectives of a group of one cost nothing."""
    found = pieces(setting, group.barrier, alone=group.world_size == 1)
    lines: dict[str, Any] = collectives(group)
    small = lines["all_gather"].latency_s
    nothing = Line(latency_s=0.0, seconds_per_byte=0.0)
    wire, work = (nothing, nothing)
    if setting.adapter is not None and group.rank == 0 and group.world_size > 1:
        wire, work = wire_lines(setting.shape.n_embd)
    unit = _unit_line(setting, group, found["block_forward"] + found["block_backward"], lines["all_gather"])
    return Costs(**found, **lines, wire=wire, wire_work=work, unit=unit, step=LOG_S + VOTES * small)


def _unit_line(setting: Setting, group: Group, alone: float, gather: Line) -> Line:
    """What FSDP adds to a block that takes so long alone, and to one that is hardly more than its calls."""
    if not dist.is_initialized():
        return Line(latency_s=0.0, seconds_per_byte=0.0)  # a group of one that was not started as such
    return_large_tensors()  # as FSDP's ranks do
    seconds, size = _unit_seconds(setting, group, alone, gather)
    least = dataclasses.replace(setting, shape=_narrow(setting.shape), micro_batch_size=1, tokens=1)
    latency, least_size = _unit_seconds(least, group, block_seconds(least, group.barrier), gather)
    if least_size >= size:
        return Line(latency_s=seconds, seconds_per_byte=0.0)
    return line_through((least_size, size), (latency, seconds))


def _unit_seconds(setting: Setting, group: Group, alone: float, gather: Line) -> tuple[float, float]:
    """Of a micro-batch that is not the step's last, above computing and two gathers; and the unit's bytes."""
    mesh = init_device_mesh("cpu", (group.world_size,))
    both, size = sharded_block_seconds(setting, mesh, group.barrier)
    sent = size * (group.world_size - 1) / group.world_size
    gathers = 2.0 * gather.seconds(sent) if group.world_size > 1 else 0.0
    return max(0.0, both - alone - gathers), size


def _narrow(shape: GPT2Config) -> GPT2Config:
    return dataclasses.replace(shape, n_embd=NARROW, n_head=1, n_inner=None)


def collectives(group: Group) -> dict[str, Line]:
    """By the bytes that a rank sends, as rings count them."""
    names = ("all_reduce", "all_gather", "reduce_scatter")
    if group.world_size == 1:
        return {name: Line(latency_s=0.0, seconds_per_byte=0.0) for name in names}
    return {name: _line(name, group) for name in names}


def _line(name: str, group: Group) -> Line:
    world = group.world_size
    share = (world - 1) / world * (2 if name == "all_reduce" else 1)
    seconds = tuple(_seconds(_collective(name, size, world), group) for size in (SMALL, LARGE))
    return line_through((SMALL * share, LARGE * share), (seconds[0], seconds[1]))


def _collective(name: str, num_bytes: int, world: int) -> Callable[[], Any]:
    """One on a whole tensor of so many bytes."""
    whole, part = torch.zeros(num_bytes // 4 // world * world), torch.zeros(num_bytes // 4 // world)
    works: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_single(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole),
    }
    return works[name]


def _seconds(work: Callable[[], Any], group: Group) -> float:
    """The number of repetitions is the same on all ranks."""
    return median_seconds(work, group.barrier, times=20)


def setting_of(fields: dict[str, Any]) -> Setting:
    """From JSON."""
    adapter = fields["adapter"]
    if adapter is not None:
        adapter = AdapterConfig(**adapter | {name: tuple(adapter[name]) for name in ("targets", "modules")})
    return Setting(
        **fields
        | {
            "shape": GPT2Config(**fields["shape"]),
            "adapter": adapter,
            "cuts": Cuts(**fields["cuts"]),
            "device": Device(**fields["device"]),
            "link": Link(**fields["link"]),
        }
    )


def _run(stop: StopRequest) -> None:
    main(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    end_rank(_run)
