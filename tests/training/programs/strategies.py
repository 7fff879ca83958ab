"""One of four ranks that train a tiny model under every strategy at 1 to 4 ranks: RANK, FOLDER.

Each case forms a group of its own, so that one start of processes serves all. Rank 0 writes what each case gave.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.adapters.linear import forget_row_norms
from torso.model.blocks import Block
from torso.model.config import Cuts, GPT2Config
from torso.model.stages import GPT2WithLoss
from torso.model.weights import RandomWeights, build
from torso.parallel.apply import apply
from torso.parallel.group import Group
from torso.parallel.strategy_config import StrategyConfig
from torso.training.checkpoint import Checkpoint
from torso.training.config import OptimizerConfig
from torso.training.meter import Meter
from torso.training.part import Update
from torso.training.whole import Recipe, WholeModel

SHAPE = GPT2Config(vocab_size=61, n_positions=16, n_embd=20, n_layer=3, n_head=2)
STEPS = 3


@dataclass(frozen=True)
class Batch:
    index: int
    token_ids: Tensor
    lengths: Tensor
    target_mask: Tensor


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    ranks: int
    strategy: str
    adapter: str = "none"
    deterministic: bool = True
    dropout: float = 0.0
    dtype: str = "fp32"
    recompute: bool = False
    compile: bool = False
    micro_batches: tuple[int, ...] = (5, 1, 4)
    """Of each step: uneven last waves, and fewer than there are ranks."""


def cases() -> list[Case]:
    found = []
    for adapter in ("none", "dora"):
        base = Case(name=f"{adapter} single", ranks=1, strategy="single", adapter=adapter, dropout=0.1)
        found.append(base)
        for strategy in ("ddp", "fsdp", "hsdp"):
            # hsdp is fsdp but for the mesh where there is one copy
            for ranks in (2, 4) if strategy == "hsdp" else (1, 2, 3, 4):
                name = f"{adapter} {strategy} {ranks}"
                found.append(dataclasses.replace(base, name=name, ranks=ranks, strategy=strategy))
                if ranks > 1:
                    found.append(dataclasses.replace(found[-1], name=f"{name} fast", deterministic=False))
    for dtype in ("bf16", "fp16"):
        for strategy, ranks in (("single", 1), ("ddp", 2), ("fsdp", 2)):
            name = f"{dtype} {strategy} {ranks}"
            found.append(Case(name=name, ranks=ranks, strategy=strategy, dtype=dtype))
            found.append(dataclasses.replace(found[-1], name=f"dora-{name}", adapter="dora"))
    for strategy, ranks in (("single", 1), ("ddp", 2), ("fsdp", 2)):
        name = f"recompute {strategy} {ranks}"
        found.append(Case(name=name, ranks=ranks, strategy=strategy, recompute=True, dropout=0.1))
    for strategy, ranks in (("single", 1), ("ddp", 4), ("fsdp", 4), ("hsdp", 4)):
        few = Case(name=f"few {strategy} {ranks}", ranks=ranks, strategy=strategy, micro_batches=(1, 1, 1))
        found += [few, dataclasses.replace(few, name=f"{few.name} fast", deterministic=False)]
    # compiling takes long, so no step has other shapes, as that of a rank without a micro-batch
    plain = Case(name="plain single 1", ranks=1, strategy="single", micro_batches=(2, 2, 2))
    found.append(plain)
    if shutil.which("g++"):
        for strategy, ranks in (("single", 1), ("fsdp", 2)):
            name = f"compile {strategy} {ranks}"
            found.append(dataclasses.replace(plain, name=name, ranks=ranks, strategy=strategy, compile=True))
    return found


def batches(step: int, count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(step)
    made = []
    for index in range(count):
        ids = torch.randint(61, (2, 9), generator=generator)
        mask = torch.rand(2, 9, generator=generator) < 0.5
        mask[:, 0] = False
        made.append(Batch(index, ids, torch.tensor([9, 9]), mask))
    return made


def learner(case: Case, group: Group) -> tuple[WholeModel, nn.Module]:
    p = case.dropout
    shape = dataclasses.replace(SHAPE, embd_pdrop=p, attn_pdrop=p, resid_pdrop=p)
    source = RandomWeights(shape, 1)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[case.dtype]
    # adapters stay in float32 on a base of the dtype; weights that are trained are cast for computing
    base = torch.float32 if case.adapter == "none" or dtype is None else dtype
    module = build(lambda config, cuts: GPT2WithLoss(config), source, Cuts.default(3), base)
    if case.adapter == "none":
        module.requires_grad_(True)
    else:
        inject(module, AdapterConfig(kind="dora", lora_rank=3, dropout=p), seed=2)
    initial = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
    config = StrategyConfig(
        name=case.strategy,  # type: ignore[arg-type]
        deterministic=case.deterministic,
        recompute=case.recompute,
        compile=case.compile,
    )
    units = [unit for unit in module.modules() if isinstance(unit, Block)]
    strategy = apply(config, module, units, group, torch.device("cpu"), None if base == dtype else dtype)
    recipe = Recipe(
        initial=initial.__getitem__,
        shapes={name: tuple(t.shape) for name, t in initial.items()},
        optimizer=OptimizerConfig(weight_decay=0.01),
        seed=3,
        device=torch.device("cpu"),
        scaled=case.dtype == "fp16",
        after_update=lambda: forget_row_norms(module),
    )
    return WholeModel(strategy, group, recipe), module


def train(model: WholeModel, group: Group, case: Case, first: int = 1) -> dict[str, Any]:
    losses, norms, counts = [], [], []
    meter = Meter(group, model)
    for number in range(first, STEPS + 1):
        count = case.micro_batches[number - 1]
        meter.start()
        meter.results = model.compute(number, batches(number, count))
        totals = meter.gather(count)
        losses.append(totals.loss_sum)
        counts.append((totals.target_tokens, totals.real_tokens, totals.padded_tokens))
        squared = model.prepare(number, count)
        norms.append(squared.squared)
        model.commit(number, Update(10.0, 0.7, 0.01, skip=not squared.finite))
    return {"losses": losses, "norms": norms, "counts": counts}


def run(case: Case, rank: int, kept: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    group = Group(rank, case.ranks, dist.group.WORLD)
    model, _ = learner(case, group)
    model.open(None)
    found = train(model, group, case) | {"sent": model.traffic().sent}
    state = copied(model.state(STEPS))
    # what one strategy saved, another goes on from
    before = kept.get(f"{case.adapter} after 1") if case.deterministic and case.dtype == "fp32" else None
    resumed: dict[str, Tensor] = {}
    if case.dropout and not case.recompute and case.deterministic:
        start = model
        if case.strategy == "single":
            start.open(None)
            count = case.micro_batches[0]
            start.compute(1, batches(1, count))
            start.prepare(1, count)
            start.commit(1, Update(10.0, 0.7, 0.01))
            kept[f"{case.adapter} after 1"] = before = copied(start.state(1))
        start.open(lambda: Checkpoint(1, before or {}, {}))
        train(start, group, case, first=2)
        resumed = start.state(STEPS)
    if rank == 0:
        kept[case.name] = state
        found |= {"digest": digest(state), "resumed": digest(resumed) if resumed else ""}
        single = kept.get(f"{case.name.split()[0]} single", kept.get(f"{case.name.split()[0]} single 1"))
        assert single is not None
        found["apart"] = max(float((state[n].double() - single[n].double()).abs().max()) for n in state)
        found["graphs"] = counters["stats"]["unique_graphs"]
        found["numel"] = sum(tensor.numel() for name, tensor in state.items() if name.startswith("adapter:"))
    return found


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """To be kept beyond the next step."""
    return {name: tensor.clone() for name, tensor in state.items()}


def digest(state: dict[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name in sorted(state):
        sha.update(name.encode() + state[name].contiguous().numpy().tobytes())
    return sha.hexdigest()


@contextmanager
def gathered(case: Case, rank: int, folder: Path) -> Iterator[None]:
    store = dist.FileStore(str(folder / f"store {case.name}"), case.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    # torch's own: when it imports its compiler, and when that looks at what FSDP has gathered
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    kept: dict[str, dict[str, Tensor]] = {}
    found = {}
    for case in cases():
        if rank < case.ranks:
            with gathered(case, rank, folder):
                found[case.name] = run(case, rank, kept)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
