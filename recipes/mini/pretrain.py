"""Pretrain `mini`: python recipes/mini/pretrain.py --folder build/mini --minutes 50

Two processes of one thread each share every step's blocks (gloo). The schedule goes by the clock: warm-up, a
level stretch, then a linear fall to nothing over the last part of `--minutes`, so a slow machine sees fewer
tokens but still ends on a finished model. `<folder>/checkpoint.pt` is written every two minutes; the same
command goes on from there. Writing another number of minutes into `<folder>/minutes` changes the budget of a
run under way.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from corpus import Corpus
from export import export
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from torso.model.config import GPT2Config
from torso.model.stages import GPT2
from torso.model.weights import RandomWeights

CONFIG = GPT2Config(
    vocab_size=4096,
    n_positions=512,
    n_embd=192,
    n_layer=6,
    n_head=3,
    bos_token_id=4095,
    eos_token_id=4095,
)
SEED = 20
RANKS = 2
BLOCK, BLOCKS_A_STEP = 512, 8
LEARNING_RATE, WEIGHT_DECAY, CLIP = 2e-3, 0.1, 1.0
WARM_UP, FALL = 0.02, 0.5
CHUNK = 256
SAVE_SECONDS = 120.0
REPORT_STEPS, EVALUATION_STEPS, EVALUATION_BLOCKS = 50, 500, 48


def learning_rate(progress: float) -> float:
    """At `progress` in [0, 1] of the budget."""
    level = min(1.0, (progress + 1e-3) / WARM_UP, max(0.0, 1.0 - progress) / FALL)
    return LEARNING_RATE * level


def loss_sum(network: GPT2, tokens: Tensor) -> Tensor:
    """Summed cross-entropy of [B, T + 1] tokens; logits are made in chunks of rows that stay in the cache."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.split(network.hidden(tokens[:, :-1]).flatten(0, 1), CHUNK)
        targets = torch.split(tokens[:, 1:].flatten(), CHUNK)
        losses = [
            F.cross_entropy(F.linear(rows, network.wte.weight).float(), wanted, reduction="sum")
            for rows, wanted in zip(hidden, targets, strict=True)
        ]
    return torch.stack(losses).sum()


def initial_network() -> GPT2:
    """GPT-2's own start."""
    source, network = RandomWeights(CONFIG, SEED), GPT2(CONFIG)
    network.load_state_dict({name: source.tensor(name) for name in network.state_dict()})
    return network


def halves(tokens: Tensor) -> Tensor:
    """[B, T + 1] as [2B, T/2 + 1]: shorter contexts are cheaper, so three steps of four use them."""
    middle = tokens.shape[1] // 2
    return torch.cat([tokens[:, : middle + 1], tokens[:, middle:]])


class Trainer:
    """One rank of the run. Gradients lie in one flat buffer whose last element carries rank 0's clock."""

    def __init__(self, rank: int, arguments: argparse.Namespace) -> None:
        self.rank, self.folder, self.export_folder = rank, arguments.folder, arguments.export
        self.minutes = arguments.minutes
        self.corpus = Corpus(self.folder, BLOCK, SEED)
        self.network = initial_network()
        parameters = list(self.network.parameters())
        self.flat = torch.zeros(sum(p.numel() for p in parameters) + 1)
        for p, part in zip(parameters, torch.split(self.flat[:-1], [p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)
        groups = [
            {"params": [p for p in parameters if p.dim() == 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True)
        self.step, self.seconds, self.started = 0, 0.0, time.monotonic()
        self.saved_at = 0.0
        self.resume()

    def resume(self) -> None:
        path = self.folder / "checkpoint.pt"
        if path.exists():
            state = torch.load(path, weights_only=True)
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = state["step"], state["seconds"]
            self.started = time.monotonic() - self.seconds
            self.saved_at = self.seconds

    def clock(self) -> float:
        """On rank 0 the share of the budget that has passed; elsewhere 0, so that the sum is rank 0's."""
        if self.rank:
            return 0.0
        budget = self.folder / "minutes"
        if budget.exists():
            self.minutes = float(budget.read_text())
        return float((time.monotonic() - self.started) / 60 / self.minutes)

    def train_step(self) -> tuple[float, float]:
        """One step on all ranks; progress and the mean loss of this rank."""
        share = BLOCKS_A_STEP // RANKS
        blocks = self.corpus.train(self.step, BLOCKS_A_STEP)[self.rank * share : (self.rank + 1) * share]
        tokens = torch.from_numpy(blocks.astype("int64"))
        self.flat.zero_()
        loss = loss_sum(self.network, halves(tokens) if self.step % 4 else tokens) / (share * BLOCK)
        loss.backward()  # type: ignore[no-untyped-call]
        self.flat[-1] = RANKS * self.clock()
        dist.all_reduce(self.flat)
        self.flat /= RANKS
        progress = float(self.flat[-1])
        norm = float(torch.linalg.vector_norm(self.flat[:-1]))
        self.flat *= min(1.0, CLIP / (norm + 1e-6))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(progress)
        self.optimizer.step()
        self.step += 1
        self.seconds = time.monotonic() - self.started
        return progress, float(loss.detach())

    @torch.no_grad()
    def perplexity(self, blocks: int) -> float:
        """Per token on the first held-out blocks, shared by the ranks."""
        mine = self.corpus.held_out[:blocks][self.rank :: RANKS]
        sums = torch.zeros(2, dtype=torch.float64)
        for start in range(0, len(mine), 4):
            tokens = torch.from_numpy(mine[start : start + 4].astype("int64"))
            sums += torch.tensor([float(loss_sum(self.network, tokens)), tokens[:, 1:].numel()])
        dist.all_reduce(sums)
        return math.exp(sums[0] / sums[1])

    def save(self) -> None:
        if self.rank == 0:
            state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
            partial = self.folder / "checkpoint.partial"
            torch.save({**state, "step": self.step, "seconds": self.seconds}, partial)
            os.replace(partial, self.folder / "checkpoint.pt")
            export(self.network.state_dict(), CONFIG, self.folder, self.export_folder)
        self.saved_at = self.seconds

    def say(self, text: str) -> None:
        if self.rank == 0:
            seen = self.step * BLOCKS_A_STEP * BLOCK / 1e6
            print(f"step {self.step}  {seen:.2f}M tokens  {self.seconds / 60:.1f} min  {text}", flush=True)

    def run(self) -> None:
        count = sum(p.numel() for p in self.network.parameters())
        self.say(f"{count:,} parameters, {self.corpus.tokens:,} tokens an epoch")
        progress, mean, since, marked = 0.0, 0.0, self.step, self.seconds
        while progress < 1.0:
            progress, loss = self.train_step()
            mean += (loss - mean) / min(REPORT_STEPS, self.step - since)
            if self.step % REPORT_STEPS == 0:
                speed = REPORT_STEPS * BLOCKS_A_STEP * BLOCK / max(self.seconds - marked, 1e-9)
                self.say(f"loss {mean:.3f}  lr {learning_rate(progress):.2e}  {speed:.0f} tokens/s")
                marked = self.seconds
            if self.step % EVALUATION_STEPS == 0:
                self.say(f"held-out perplexity {self.perplexity(EVALUATION_BLOCKS):.2f}")
            if self.seconds - self.saved_at > SAVE_SECONDS or (self.saved_at == 0.0 and self.step == 20):
                self.save()
        self.save()
        perplexity = self.perplexity(len(self.corpus.held_out))
        self.say(f"done; held-out perplexity {perplexity:.2f} on all {len(self.corpus.held_out)} blocks")


def rank_main(rank: int, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rendezvous = f"file://{(arguments.folder / 'rendezvous').resolve()}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    Trainer(rank, arguments).run()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/mini"))
    parser.add_argument("--export", type=Path, default=Path("build/mini/model"), help="the model folder")
    parser.add_argument("--minutes", type=float, default=50.0)
    arguments = parser.parse_args()
    (arguments.folder / "rendezvous").unlink(missing_ok=True)
    start_processes(  # type: ignore[no-untyped-call]
        rank_main, args=(arguments,), nprocs=RANKS, start_method="spawn"
    )


if __name__ == "__main__":
    main()
