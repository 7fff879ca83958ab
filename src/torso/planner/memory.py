"""Peak memory of one device under each strategy, part by part, in bytes.

N parameters, A of them trained, W ranks, S of them in a shard group. The states of mixed-precision training are those
of Rajbhandari et al. 2020 ("ZeRO", section 3.1), here with fp32 masters only: weights 4N, gradients 4N, AdamW's two
moments 8N, together 16N. What is particular to Torso's own loop is said where it enters.
"""

from __future__ import annotations

from dataclasses import dataclass

from torso.model.loss import CHUNK_ROWS
from torso.parallel.memory import LARGE
from torso.planner.counts import (
    block_kept_values,
    block_parameters,
    embedding_parameters,
    model_parameters,
    trainable_parameters,
)
from torso.planner.setting import Setting, Strategy

CPU_SLACK = 1.2
"""What malloc holds above the tensors that it was asked for.

Kept values of many sizes leave gaps (measured 1.1 to 1.4).
"""


LARGE_UNASKED = 32 << 20
"""Bytes from which glibc asks the system without being told to (mallopt(3), M_MMAP_THRESHOLD, its upper limit)."""
SAVE_BYTES = 12
"""A trained parameter's in a checkpoint: it and its moments, whole on the rank that writes."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device at the peak of a step."""

    weights: float = 0.0
    gradients: float = 0.0
    """At the end of a step."""
    earlier: float = 0.0
    """Gradients that are there already when the last backward pass begins."""
    moments: float = 0.0
    """Of AdamW."""
    copies: float = 0.0
    """Of the trained state, held on the host to begin anew from."""
    activations: float = 0.0
    """Kept for backward passes."""
    loss: float = 0.0
    """Logits, in chunks, and the gradients computed with them."""
    communication: float = 0.0
    """Gathered weights, messages under way."""
    beginning: float = 0.0
    """What FSDP holds of weights before the first block, when there are no activations yet."""
    ending: float = 0.0
    """Made and given back after the passes: the embeddings' gradients, norms, the update of the largest tensor."""
    retained: float = 0.0
    """Memory of activations that malloc keeps, and cannot use for what comes at the beginning and the end."""
    saving: float = 0.0
    """Of others' state while a checkpoint is written, on the rank that does; gradients, activations and messages are
    gone then."""
    held: float = 0.0
    """Taken before any tensor is made."""

    @property
    def step(self) -> float:
        """At the peak of a step, above what is held anyway."""
        first = self.beginning + self.retained
        passes = self.earlier + self.activations + self.loss + self.communication
        last = self.gradients + self.ending + self.retained
        return self._staying + max(first, passes, last)

    @property
    def total(self) -> float:
        """All of it, at the peak of a step or of a save, whichever is larger."""
        return self.held + max(self.step, self._staying + self.saving)

    @property
    def _staying(self) -> float:
        return self.weights + self.moments + self.copies


def memory(setting: Setting, strategy: Strategy) -> dict[str, Memory]:
    """Of each party: a rank, under the strategy's name, or a split's `client` and `worker`."""
    if strategy == "split":
        return {"client": _client(setting), "worker": _worker(setting)}
    if strategy == "single":
        return {strategy: _whole(setting, ranks=1, shards=1)}
    shards = {"ddp": 1, "fsdp": setting.devices, "hsdp": setting.shards}[strategy]
    return {strategy: _whole(setting, ranks=setting.devices, shards=shards)}


def kept_bytes(setting: Setting, blocks: int) -> float:
    """Activations of one micro-batch in so many blocks."""
    slack = CPU_SLACK if setting.device.is_cpu else 1.0
    return slack * blocks * block_kept_values(setting) * setting.value_bytes


def loss_bytes(setting: Setting) -> float:
    """Logits are made for at most CHUNK_ROWS rows at a time, in fp32, with as much again for their gradient.

    From the second chunk on the last chunk's gradient is still there: three in place of two. A trained LM head adds the
    gradient of its V C weights, which is there twice when the logits are gone.
    """
    shape, rows = setting.shape, min(CHUNK_ROWS, setting.target_rows)
    chunk = 4.0 * rows * shape.vocab_size
    half = 0.0 if setting.dtype == "fp32" else 2.0 * rows * shape.vocab_size
    logits = chunk * (2 if setting.target_rows <= CHUNK_ROWS else 3) + half
    head = 4.0 * shape.vocab_size * shape.n_embd if setting.adapter is None else 0.0
    return head + max(logits, head)


def adapter_states(setting: Setting, trained: int, micro_batches: int, ranks: int) -> dict[str, float]:
    """Of `TrainablePart`: gradients are kept by micro-batch and gathered, so that they add in one order.

    At the end of a step there are a rank's own gradients, the same again as one tensor to be sent, those of all
    ranks, and the sum. They and the copies to begin anew from are on the host.
    """
    own = 4.0 * trained * micro_batches
    gathered = own * ranks if ranks > 1 else 0.0
    on_host = setting.device.is_cpu
    return {
        "earlier": own if on_host else 0.0,
        "gradients": 2.0 * own + gathered + 4.0 * trained if on_host else 4.0 * trained,
        "moments": 8.0 * trained,
        "copies": 12.0 * trained if on_host else 0.0,
    }


def _whole(setting: Setting, ranks: int, shards: int) -> Memory:
    """A rank that has all blocks, or its shard of them."""
    return _adapted(setting, shards) if setting.adapter is not None else _full(setting, ranks, shards)


def _adapted(setting: Setting, shards: int) -> Memory:
    """One micro-batch at a time through all blocks; autograd adds the gradients up. A copy of the adapters is kept."""
    shape, trained = setting.shape, trainable_parameters(setting)
    gathered = _gathered(setting, shards)
    return Memory(
        weights=(model_parameters(shape) * setting.value_bytes + 4.0 * trained) / shards,
        gradients=4.0 * trained / shards,
        earlier=4.0 * trained / shards,
        moments=8.0 * trained / shards,
        copies=4.0 * trained if setting.device.is_cpu else 0.0,
        activations=kept_bytes(setting, shape.n_layer),
        loss=loss_bytes(setting),
        saving=_saving(setting, trained) if shards > 1 else 0.0,
        communication=gathered,
        beginning=_beginning(setting, gathered),
        retained=_retained(setting, shards) if shards > 1 else 0.0,
    )


def _full(setting: Setting, ranks: int, shards: int) -> Memory:
    """16 N / S, the units that are whole at the time, and a copy of the weights in the dtype that is computed in."""
    shape = setting.shape
    n = model_parameters(shape)
    computed = 0.0 if setting.dtype == "fp32" else 2.0 * n
    gathered = _gathered(setting, shards)
    # the block whose gradients are being shared out has them whole, and once more in one piece
    shared_out = 8.0 * block_parameters(shape) if shards > 1 else 0.0
    return Memory(
        weights=4.0 * n / shards + computed / shards,
        gradients=4.0 * n / shards,
        earlier=_earlier_gradients(setting, ranks, shards),
        moments=8.0 * n / shards,
        activations=kept_bytes(setting, shape.n_layer),
        loss=loss_bytes(setting),
        saving=_saving(setting, n) if shards > 1 else 0.0,
        communication=gathered + shared_out,
        beginning=_beginning(setting, gathered),
        ending=_ending(setting, ranks, shards),
        retained=_retained(setting, shards),
    )


def _earlier_gradients(setting: Setting, ranks: int, shards: int) -> float:
    """DDP's buckets always; otherwise those of a rank's earlier micro-batches, which FSDP keeps whole."""
    in_buckets = ranks > 1 and shards == 1
    return 4.0 * model_parameters(setting.shape) if in_buckets or setting.share(ranks) > 1 else 0.0


def _ending(setting: Setting, ranks: int, shards: int) -> float:
    """After the passes, where all parameters are trained; in multiples of the largest tensor's values.

    The update divides and clips the gradient and takes a root: three. A single rank's norm squares in float64, which is
    four. FSDP still has the tied embeddings whole, with their two gradients, before they become a share of one.
    """
    largest = float(_largest(setting))
    if shards == 1:
        return largest * (16.0 if ranks == 1 else 12.0)
    return max(12.0 * largest - 4.0 * largest / shards, 12.0 * largest / shards)


def _largest(setting: Setting) -> int:
    """Values of the largest trained tensor: the tokens' embeddings, or a layer of an MLP."""
    shape = setting.shape
    return max(shape.vocab_size, shape.inner) * shape.n_embd


def _gathered(setting: Setting, shards: int) -> float:
    """What FSDP holds whole: the block at work, the next one, and the embeddings, which the root keeps.

    Zhao et al. 2023 ("PyTorch FSDP", section 3.2.1): at the peak there are the shard and the largest whole unit;
    one more is fetched ahead.
    """
    if shards == 1:
        return 0.0
    return 2.0 * block_parameters(setting.shape) * setting.value_bytes + _embeddings(setting)


def _beginning(setting: Setting, gathered: float) -> float:
    """The buffer that the embeddings came in is given back once the first block is there."""
    return gathered + _embeddings(setting) if gathered else 0.0


def _embeddings(setting: Setting) -> float:
    return float(embedding_parameters(setting.shape) * setting.value_bytes)


def _retained(setting: Setting, shards: int) -> float:
    """Activations lie where malloc gives nothing back; embeddings that are large are not put there."""
    large = _embeddings(setting) > (LARGE if shards > 1 else LARGE_UNASKED)
    return kept_bytes(setting, setting.shape.n_layer) if setting.device.is_cpu and large else 0.0


def _saving(setting: Setting, trained: int) -> float:
    """Of the rank that writes; on the host."""
    return float(SAVE_BYTES * trained) if setting.device.is_cpu else 0.0


def _client(setting: Setting) -> Memory:
    """Head and tail, with the embeddings in both; activations of the body's ends wait in messages."""
    shape, cuts = setting.shape, setting.cuts
    head, tail, ends = len(cuts.head), len(cuts.tail), [*cuts.head, *cuts.tail]
    trained = sum(trainable_parameters(setting, range(layer, layer + 1)) for layer in ends)
    frozen = model_parameters(shape) + shape.vocab_size * shape.n_embd - len(cuts.body) * block_parameters(shape)
    own = setting.share(setting.clients)
    waiting = min(setting.window, own)
    return Memory(
        weights=frozen * setting.value_bytes + 4.0 * trained,
        activations=kept_bytes(setting, head) * waiting + kept_bytes(setting, tail),
        loss=loss_bytes(setting),
        saving=_saving(setting, trainable_parameters(setting)),
        communication=4.0 * waiting * _message_bytes(setting),
        **adapter_states(setting, trained, own, setting.clients),
    )


def _worker(setting: Setting) -> Memory:
    """The body; answers are kept until the step is committed, two a micro-batch, so that a request can be repeated."""
    shape, cuts = setting.shape, setting.cuts
    trained = trainable_parameters(setting, cuts.body)
    own = setting.share(setting.workers)
    waiting = min(setting.window * setting.clients, setting.micro_batches)
    waiting = min(-(-waiting // setting.workers), own)
    return Memory(
        weights=len(cuts.body) * block_parameters(shape) * setting.value_bytes + 4.0 * trained,
        activations=kept_bytes(setting, len(cuts.body)) * waiting,
        communication=_message_bytes(setting) * (2.0 * own + 2.0 * waiting) if setting.device.is_cpu else 0.0,
        **adapter_states(setting, trained, own, setting.workers),
    )


def _message_bytes(setting: Setting) -> float:
    """Activations, or their gradient, of one micro-batch: B T C values."""
    return float(setting.positions * setting.shape.n_embd * setting.value_bytes)
