"""From a run's settings to the objects that train or evaluate it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torso.adapters.inject import inject
from torso.adapters.linear import forget_row_norms, keep_out_of_compiled_code
from torso.config import RunConfig
from torso.data.corpus import Corpus
from torso.data.encoding import Encoded, encode_split
from torso.data.micro_batches import BatchPlan
from torso.data.sources import load
from torso.data.tokenizer import Tokenizer
from torso.errors import ConfigError
from torso.model.blocks import ATTENTION, Block
from torso.model.config import Cuts, GPT2Config
from torso.model.hub import open_source, tokenizer_folder
from torso.model.names import expected_shapes, layer_of
from torso.model.stages import GPT2WithLoss, Head, Tail
from torso.model.weights import FolderWeights, RandomWeights, Stage, StateWeights, Tensors, build
from torso.parallel.apply import apply
from torso.parallel.arithmetic import DTYPES, Dtype, describe, native_dtype, set_threads
from torso.parallel.group import Group
from torso.split.client.job import JobSpec
from torso.split.client.remote_body import RemoteBody
from torso.split.client.transport import Transport, connect
from torso.split.protocol.codec import JSON, SAFETENSORS
from torso.training.checkpoint import Checkpoint
from torso.training.ends import Ends
from torso.training.learner import Learner
from torso.training.part import TrainablePart
from torso.training.run_directory import RunDirectory
from torso.training.staged import StagedModel
from torso.training.whole import Recipe, WholeModel


@dataclass(frozen=True)
class Assembly:
    """Builds what a run needs, each thing once; light until something is asked for."""

    config: RunConfig
    local_rank: int = 0

    @cached_property
    def source(self) -> FolderWeights | RandomWeights:
        """The base weights."""
        return open_source(self.config.model, self.config.init, self.config.base_seed)

    @cached_property
    def model_config(self) -> GPT2Config:
        """The model's shape, with the dropouts that the run asks for."""
        p = self.config.dropout
        return dataclasses.replace(self.source.config, embd_pdrop=p, attn_pdrop=p, resid_pdrop=p)

    @cached_property
    def cuts(self) -> Cuts:
        """Where the model is cut; checked for a split."""
        cuts = self.config.cuts(self.source.config.n_layer)
        if self.config.strategy == "split" and cuts.head_cut < 1:
            raise ConfigError(
                "head_cut is 0 with strategy split", "Plain embeddings would cross the wire; give 1 or more."
            )
        return cuts

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's, or the one that was asked for; its vocabulary must fit."""
        tokenizer = Tokenizer(self.config.tokenizer or tokenizer_folder(self.config.model))
        if tokenizer.vocab_size > self.source.config.vocab_size:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, the model {self.source.config.vocab_size}",
                "Give the tokenizer that belongs to the model with --tokenizer.",
            )
        return tokenizer

    @cached_property
    def corpus(self) -> Corpus:
        """The data set; raises DataError when it was prepared with another tokenizer."""
        corpus = load(self.config.data)
        if corpus.tokenizer is not None:
            c = self.config
            here = f"--tokenizer {c.tokenizer}" if c.tokenizer else f"--model {c.model}"
            corpus.tokenizer.check(corpus.name, self.tokenizer, here)
        return corpus

    @cached_property
    def max_tokens(self) -> int:
        """Longest example."""
        positions = self.source.config.n_positions
        longest = self.config.max_tokens or positions
        if longest > positions:
            raise ConfigError(
                f"max_tokens is {longest}, the model has {positions} positions", f"Give at most {positions}."
            )
        return longest

    @cached_property
    def encoded(self) -> Encoded:
        """The training examples."""
        return encode_split(self.corpus.split("train"), self.tokenizer, self.max_tokens)

    @cached_property
    def plan(self) -> BatchPlan:
        """The canonical micro-batches."""
        c = self.config
        return BatchPlan(self.encoded.examples[: c.max_examples], c.seed, c.global_batch_size, c.micro_batch_size)

    @property
    def own_tensors(self) -> list[str]:
        """Names of the base tensors that this party loads."""
        cuts = self.cuts
        remote = cuts.body if self.config.strategy == "split" else range(0)
        return [name for name in expected_shapes(self.source.config) if layer_of(name) not in remote]

    @cached_property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.devices[self.local_rank % len(self.devices)]

    @property
    def devices(self) -> list[torch.device]:
        """Where the ranks compute, by local rank; raises ConfigError."""
        names = self.config.device
        ranks = range(max(self.config.num_ranks, self.local_rank + 1))
        return [choose_device(names[rank % len(names)], rank) for rank in ranks]

    @cached_property
    def dtype(self) -> Dtype:
        """What is computed in."""
        return native_dtype(self.device) if self.config.dtype == "auto" else self.config.dtype

    @property
    def arithmetic(self) -> dict[str, str]:
        """Call `prepare_process` first."""
        if self.config.strategy == "split":
            return describe(self.device, self.dtype, ATTENTION)
        strategy = self.config.strategy_config
        order = strategy.describe(self.config.num_ranks)
        extra = ({"addition": order} if order else {}) | ({"compiled": "blocks"} if strategy.compile else {})
        return describe(self.device, self.dtype, ATTENTION) | extra

    def prepare_process(self) -> None:
        """Before anything is computed: the number of intra-op threads, and this rank's device as the current one."""
        set_threads(num_threads(self.config))
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # where peaks of memory are read, and where fully_shard puts shards

    @cached_property
    def ends(self) -> Ends:
        """Head and tail with their adapters."""
        head = build(Head, self.source, self.cuts, DTYPES[self.dtype], self.device, self.model_config)
        tail = build(Tail, self.source, self.cuts, DTYPES[self.dtype], self.device, self.model_config)
        adapter, seed = self.config.adapter_config, self.config.seed
        part = TrainablePart(inject(head, adapter, seed) | inject(tail, adapter, seed), self.config.optimizer)
        return Ends(head, tail, part, seed, self.device)

    def learner(self, run: RunDirectory, group: Group, on_message: Callable[[str], None]) -> Learner:
        """What the loop trains: whole here, or in stages with the body on a server."""
        if self.config.strategy != "split":
            return self._whole_model(group)
        body = RemoteBody(
            job=run.state.job,
            spec=self.job_spec,
            servers=self.config.server,
            transport=self.transport(),
            group=group,
            raise_generation=run.raise_generation,
            window=self.config.window,
            patience_s=self.config.patience_s,
            on_message=on_message,
        )
        return StagedModel(self.ends, body, group, self.config.window)

    def _whole_model(self, group: Group) -> Learner:
        """All weights in float32, or float32 adapters on a frozen base in the run's dtype."""
        dtype = DTYPES["fp32" if self.config.adapter == "none" else self.dtype]
        make: Callable[[GPT2Config, Cuts], GPT2WithLoss] = lambda config, cuts: GPT2WithLoss(config)  # noqa: E731
        module = build(make, self.source, self.cuts, dtype, self.device, self.model_config)
        initial: Callable[[str], Tensor] = self.source.tensor
        if self.config.adapter == "none":
            module.requires_grad_(True)
        else:
            parameters = inject(module, self.config.adapter_config, self.config.seed)
            copies = {name: p.detach().clone() for name, p in parameters.items()}
            initial = copies.__getitem__
        recipe = Recipe(
            initial=initial,
            shapes={name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad},
            optimizer=self.config.optimizer,
            seed=self.config.seed,
            device=self.device,
            scaled=self.dtype == "fp16",
            after_update=lambda: forget_row_norms(module),
        )
        blocks = [unit for unit in module.modules() if isinstance(unit, Block)]
        cast = None if dtype == DTYPES[self.dtype] else DTYPES[self.dtype]
        if self.config.compile:
            keep_out_of_compiled_code()
        strategy = apply(self.config.strategy_config, module, blocks, group, self.device, cast)
        return WholeModel(strategy, group, recipe)

    def stage(self, make: Callable[[GPT2Config, Cuts], Stage], checkpoint: Checkpoint | None) -> Stage:
        """A stage of the model at a checkpoint (None: as it was before training), for inference."""
        source: Tensors = self.source
        if checkpoint is not None and self.config.adapter == "none":
            source = StateWeights(source.config, checkpoint.trained())
        stage = build(make, source, self.cuts, DTYPES[self.dtype], self.device, self.model_config)
        if checkpoint is not None and self.config.adapter != "none":
            parameters = inject(stage, self.config.adapter_config, self.config.seed)
            TrainablePart(parameters, self.config.optimizer).load(checkpoint.select(parameters))
        return stage

    @property
    def job_spec(self) -> JobSpec:
        """What a server is asked to hold."""
        known = self.source.has(self.cuts.body)
        return JobSpec(
            cuts=self.cuts,
            base_fingerprint=self.source.fingerprint(self.cuts.body) if known else None,
            adapter=self.config.adapter_config,
            optimizer=self.config.optimizer,
            dtype=self.dtype,
            seed=self.config.seed,
            dropout=(self.config.dropout,) * 3,
            arithmetic=self.arithmetic,
            allow_inexact=self.config.allow_inexact,
        )

    def transport(self) -> Transport:
        """Connections to the servers."""
        media_type = JSON if self.config.wire == "json" else SAFETENSORS
        return connect(self.config.server, self.config.read_timeout_s, media_type)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint says of the run that it belongs to."""
        return {
            "data": self.corpus.fingerprint,
            "plan": self.plan.fingerprint,
            "arithmetic": self.arithmetic,
            **self.base_identity,
        }

    @cached_property
    def base_identity(self) -> dict[str, str]:
        """What a trained adapter belongs to, as far as this party holds it."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "ends": _ends_fingerprint(self),
            "embeddings": self.source.fingerprint(None),
        }


def _ends_fingerprint(assembly: Assembly) -> str:
    head, tail = assembly.cuts.head, assembly.cuts.tail
    return f"{assembly.source.fingerprint(head)[:32]}{assembly.source.fingerprint(tail)[:32]}"


def num_threads(config: RunConfig) -> int:
    """All cores for a single process, 1 where several share a machine, or what was asked for."""
    if config.threads is not None:
        return config.threads
    return 1 if config.strategy == "split" or config.num_ranks > 1 else (os.cpu_count() or 1)


def choose_device(name: str, local_rank: int) -> torch.device:
    """The device of a rank: GPUs in order where there are some. Raises ConfigError."""
    if name == "auto":
        count = torch.cuda.device_count()
        return torch.device("cuda", local_rank % count) if count else torch.device("cpu")
    device: torch.device | None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}", "Give cpu, cuda, cuda:1 or auto.")
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and not count:
        raise ConfigError(f"device is {name!r}, but this machine has no usable GPU", "Give --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"device is {name!r}, but this machine has {count} GPUs", "They are counted from cuda:0.")
    return device


def on_gpus(config: RunConfig) -> bool:
    """Whether ranks compute on GPUs."""
    return choose_device(config.device[0], 0).type == "cuda"
