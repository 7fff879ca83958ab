"""DDP and FSDP in Torso against a bare script on the same model and batches.

`python benchmarks/torchrun_baseline.py [--strategy ddp fsdp] [--steps 60] [--baseline module transformers]` starts two
ranks with torchrun. In one run, step by step in turn, they train `mini`'s weights with Torso's own loop and with a
textbook loop: torch's DistributedDataParallel or `fully_shard`, gradients exchanged once a step, torch's AdamW and
clipping. The textbook's model is Torso's module, or transformers' GPT2LMHeadModel. Only training is timed, after the
first steps: from a step's micro-batches on all ranks until all ranks have made the update (Torso's log included).
Prints medians, their ratio and its quartiles step by step, the same ratio of rank 0's CPU time (for a machine that
others use too), and how far apart the losses of the two are.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torso.cli.assembly import Assembly
from torso.config import RunConfig
from torso.data.micro_batches import BatchPlan, MicroBatch, Step
from torso.model.blocks import Block
from torso.model.hub import resolve
from torso.model.stages import GPT2WithLoss
from torso.model.weights import build
from torso.parallel.group import Group
from torso.records import StepRecord
from torso.training.loop import Trainer
from torso.training.run_directory import MetricsLog, RunDirectory

RANKS, WARM_UP = 2, 6
RATE, LIMIT = 1e-4, 1.0
Times = tuple[float, float]


def main() -> None:
    """Start the ranks, once for each pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", nargs="+", choices=["ddp", "fsdp"], default=["ddp", "fsdp"])
    parser.add_argument("--baseline", nargs="+", choices=["module", "transformers"], default=["module"])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    for strategy in options.strategy:
        for baseline in options.baseline:
            with tempfile.TemporaryDirectory() as folder:
                words = [__file__, "rank", strategy, baseline, str(options.steps), folder]
                subprocess.run([*launch, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


class Textbook:
    """What a user writes who has no Torso."""

    def __init__(self, strategy: str, module: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self.module: Any = DistributedDataParallel(module) if strategy == "ddp" else module
        if strategy == "fsdp":
            mesh = init_device_mesh("cpu", (RANKS,))
            for part in (*blocks, module):
                fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=RATE, weight_decay=0.0)

    def step(self, micro_batches: Sequence[MicroBatch]) -> float:
        """One update; this rank's share of the mean loss."""
        own = micro_batches[dist.get_rank() :: RANKS]
        targets, total = sum(batch.num_targets for batch in micro_batches), 0.0
        for number, batch in enumerate(own, start=1):
            with self._synced(number == len(own)):
                # both take the mean over ranks
                loss = self.module(batch.token_ids, batch.target_mask) / targets * RANKS
                loss.backward()
            total += float(loss.detach()) / RANKS
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), LIMIT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def _synced(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(is_last)
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[None] = contextlib.nullcontext() if is_last else self.module.no_sync()
        return found


class HuggingFace(nn.Module):
    """transformers' model with the sum of the targets' losses."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import GPT2LMHeadModel

        dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        self.model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, **dropouts)

    def forward(self, token_ids: Tensor, target_mask: Tensor) -> Tensor:
        """[B, T] and [B, T] → a scalar."""
        labels = token_ids.masked_fill(~target_mask, -100)[:, 1:]
        logits = self.model(input_ids=token_ids, use_cache=False).logits[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def now() -> Times:
    """The wall clock, and the CPU time of this process."""
    return time.perf_counter(), time.process_time()


def since(before: Times) -> Times:
    """Of both."""
    wall, cpu = now()
    return wall - before[0], cpu - before[1]


class InTurn:
    """Torso's plan of steps; whenever Torso asks for one, the step before is over, and the textbook's turn comes."""

    def __init__(self, plan: BatchPlan, textbook: Textbook) -> None:
        self._plan, self._textbook = plan, textbook
        self.ours: list[Times] = []
        self.theirs: list[Times] = []
        self.losses: list[float] = []
        self._left = now()

    @property
    def steps_per_epoch(self) -> int:
        """As planned."""
        return self._plan.steps_per_epoch

    def step(self, number: int) -> Step:
        """Called by all ranks together."""
        dist.barrier()
        if number > 1:
            self.ours.append(since(self._left))
        step = self._plan.step(number)
        dist.barrier()
        started = now()
        loss = self._textbook.step(step.micro_batches)
        dist.barrier()
        self.theirs.append(since(started))
        summed = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(summed)
        self.losses.append(float(summed))
        dist.barrier()
        self._left = now()
        return step


class Quiet:
    """Hears of everything and says nothing."""

    def on_step(self, record: StepRecord, last_step: int) -> None:
        """See Listener."""

    def on_epoch(self, record: object) -> None:
        """See Listener."""

    def on_message(self, text: str) -> None:
        """See Listener."""


def textbook_of(strategy: str, baseline: str, assembly: Assembly) -> Textbook:
    """With the same weights as Torso's."""
    if baseline == "transformers":
        model = HuggingFace(resolve("mini", ("config.json",)))
        return Textbook(strategy, model, list(model.model.transformer.h))
    module = build(lambda config, cuts: GPT2WithLoss(config), assembly.source, assembly.cuts).requires_grad_(True)
    return Textbook(strategy, module, [part for part in module.modules() if isinstance(part, Block)])


def rank(strategy: str, baseline: str, steps: int, folder: Path) -> None:
    """One of the two."""
    group = Group.from_environment()
    config = RunConfig(
        strategy=strategy,  # type: ignore[arg-type]
        nproc=RANKS,
        adapter="none",
        learning_rate=RATE,
        max_grad_norm=LIMIT,
        threads=1,
        evaluate="none",
        # no checkpoint on the way
        checkpoint_every_steps=10**9,
        checkpoint_every_minutes=1e9,
        max_examples=16 * (steps + WARM_UP + 1),
    ).checked()
    assembly = Assembly(config)
    assembly.prepare_process()
    path = folder / "run"
    run = RunDirectory.create(path, config.to_toml(), 1) if group.rank == 0 else RunDirectory.elsewhere(path)
    turns = InTurn(assembly.plan, textbook_of(strategy, baseline, assembly))
    trainer = Trainer(
        learner=assembly.learner(run, group, print),
        plan=turns,
        training=config.training,
        schedule=config.schedule_config,
        group=group,
        run=run,
        info={},
        listener=Quiet(),
    )
    trainer.run(turns.steps_per_epoch)
    if group.rank == 0:
        describe(f"{strategy} against {baseline}", turns, [r.loss for r in MetricsLog(path).read(StepRecord)])
    group.close()


def medians(times: Sequence[Times]) -> Times:
    """Of both."""
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


def describe(name: str, turns: InTurn, losses: Sequence[float]) -> None:
    """One line, without the first steps; the last, which ends in a checkpoint, is not among Torso's."""
    ours, theirs = turns.ours[WARM_UP:], turns.theirs[WARM_UP : len(turns.ours)]
    low, _, high = statistics.quantiles([a / b for (a, _), (b, _) in zip(ours, theirs, strict=True)], n=4)
    apart = max(abs(a - b) / b for a, b in zip(losses, turns.losses, strict=True))
    (first, own_cpu), (second, other_cpu) = map(medians, (ours, theirs))
    print(
        f"{name}: {len(ours)} steps, median {first * 1e3:.1f} ms in Torso, {second * 1e3:.1f} ms bare, ratio "
        f"{first / second:.3f} (step by step {low:.3f} to {high:.3f}), of CPU time {own_cpu / other_cpu:.3f}; "
        f"losses differ by at most {apart:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main()
