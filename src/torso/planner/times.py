"""Seconds of one optimizer step under each strategy."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from torso.planner.costs import Costs
from torso.planner.counts import block_parameters, embedding_parameters, trainable_parameters
from torso.planner.setting import Setting, Strategy


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Of one step, on the busiest rank."""

    compute: float
    """Forward and backward passes; in a split with what the client and the worker wait for each other."""
    update: float
    """Gradients added up, the optimizer, and what every step takes besides."""
    communication: float
    """That computation does not hide."""
    sent_bytes: float = 0.0
    """By one rank in one step."""

    @property
    def total(self) -> float:
        """The step."""
        return self.compute + self.update + self.communication


def step_seconds(setting: Setting, strategy: Strategy, costs: Costs) -> Seconds:
    """Of a step. `costs` are those while all of the strategy's ranks work at once."""
    if strategy == "split":
        return _split(setting, costs)
    ranks = 1 if strategy == "single" else setting.devices
    own = setting.share(ranks)
    layers = setting.shape.n_layer
    compute = own * (layers * (costs.block_forward + costs.block_backward) + costs.loss)
    if strategy in ("fsdp", "hsdp"):
        compute += own * sum(costs.unit.seconds(size) for size in _unit_bytes(setting))
    sharded = {"fsdp": ranks, "hsdp": setting.shards}.get(strategy, 1)
    # autograd adds micro-batches' gradients up: nothing is left to combine
    update = costs.update.seconds(4.0 * trainable_parameters(setting) / sharded) + costs.step
    communication, sent = _communication(setting, strategy, costs, own)
    if costs.overlaps:
        # gradients leave while earlier blocks are still at work, weights come one block ahead
        communication = max(0.0, communication - layers * costs.block_backward)
    return Seconds(compute=compute, update=update, communication=communication, sent_bytes=sent)


def _communication(setting: Setting, strategy: Strategy, costs: Costs, own: int) -> tuple[float, float]:
    """Seconds, and bytes that a rank sends.

    A ring's all-reduce sends 2 (W - 1) / W of the gradients, a gather or a reduce-scatter (W - 1) / W (Patarasuk and
    Yuan 2009). FSDP gathers a block's weights for each forward and for each backward pass, the embeddings once for
    both, and scatters gradients at the last: 3 (W - 1) / W where there is one micro-batch (Rajbhandari et al. 2020,
    section 7.2). HSDP does so among its S shards, and all-reduces its shards of the gradients among the W / S replicas.
    """
    if strategy == "single" or setting.devices == 1:
        return 0.0, 0.0
    gradients = 4.0 * trainable_parameters(setting)
    ranks, shards = setting.devices, 1 if strategy == "ddp" else setting.devices
    if strategy == "hsdp":
        shards = setting.shards
    replicas = ranks // shards
    units = _unit_bytes(setting)
    # the root stays whole between its forward and its backward pass
    gathers = own * (2 * len(units) - 1)
    gathered = own * (2.0 * sum(units) - units[-1]) * (shards - 1) / shards
    scattered = gradients * (shards - 1) / shards
    reduced = 2.0 * gradients / shards * (replicas - 1) / replicas
    seconds = 0.0
    if shards > 1:
        seconds += gathers * costs.all_gather.latency_s + gathered * costs.all_gather.seconds_per_byte
        seconds += len(units) * costs.reduce_scatter.latency_s + scattered * costs.reduce_scatter.seconds_per_byte
    if replicas > 1:
        seconds += costs.all_reduce.seconds(reduced)
    return seconds, (gathered + scattered if shards > 1 else 0.0) + reduced


def _unit_bytes(setting: Setting) -> list[float]:
    """Of what FSDP gathers at once: each block, and the root with the embeddings, last."""
    shape = setting.shape
    parameters = [block_parameters(shape)] * shape.n_layer + [embedding_parameters(shape) + 2 * shape.n_embd]
    return [float(count * setting.value_bytes) for count in parameters]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One client and its worker: what a micro-batch takes at each station."""

    head_forward: float
    body_forward: float
    tail: float
    body_backward: float
    head_backward: float
    transit: float
    """Between the two, each way, that keeps neither busy."""

    def seconds(self, micro_batches: int, window: int) -> float:
        """Of so many micro-batches, at most `window` in flight.

        Each party does one thing at a time, in the order in which it can begin; the client begins new micro-batches
        first (`Ends.run`). Played through event by event: a closed form would have to know who is the bottleneck.
        """
        stages = (
            ("client", self.head_forward),
            ("worker", self.body_forward),
            ("client", self.tail),
            ("worker", self.body_backward),
            ("client", self.head_backward),
        )
        free = {"client": 0.0, "worker": 0.0}
        begun = min(window, micro_batches)
        ready = [(0.0, number, 0) for number in range(begun)]
        heapq.heapify(ready)
        end = 0.0
        while ready:
            at, number, stage = heapq.heappop(ready)
            party, takes = stages[stage]
            free[party] = end_of_stage = max(at, free[party]) + takes
            if stage + 1 < len(stages):
                heapq.heappush(ready, (end_of_stage + self.transit, number, stage + 1))
                continue
            end = max(end, end_of_stage)
            if begun < micro_batches:
                heapq.heappush(ready, (end_of_stage, begun, 0))
                begun += 1
        return end


def _split(setting: Setting, costs: Costs) -> Seconds:
    """Client and worker work at the same time; a pair of them is played through, the other pairs do the same.

    Where there are more clients than workers, or fewer, the busier side's computation is stretched by the ratio.
    """
    cuts = setting.cuts
    message = float(setting.positions * setting.shape.n_embd * setting.value_bytes)
    work = costs.wire_work.seconds(message)
    crowd = max(1.0, setting.clients / setting.workers)
    pipeline = Pipeline(
        head_forward=len(cuts.head) * costs.block_forward + work,
        body_forward=crowd * (len(cuts.body) * costs.block_forward + 2.0 * work),
        tail=len(cuts.tail) * (costs.block_forward + costs.block_backward) + costs.loss + 2.0 * work,
        body_backward=crowd * (len(cuts.body) * costs.block_backward + 2.0 * work),
        head_backward=len(cuts.head) * costs.block_backward + work,
        transit=max(0.0, costs.wire.seconds(message) - 2.0 * work),
    )
    own = setting.share(setting.clients)
    trained = float(trainable_parameters(setting))
    combine = setting.micro_batches * costs.combine.seconds(4.0 * trained)
    update = costs.update.seconds(4.0 * trained) + combine + costs.step
    # prepare and commit: two requests and their answers
    talk = 4.0 * costs.wire.latency_s
    return Seconds(
        compute=pipeline.seconds(own, setting.window),
        update=update,
        communication=talk,
        sent_bytes=2.0 * own * message,
    )
