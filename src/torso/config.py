"""A run's settings as people type them, and the rooms' own configs that they stand for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from torso.adapters.config import TARGETS, AdapterConfig
from torso.errors import ConfigError
from torso.model.config import Cuts
from torso.parallel.strategy_config import DATA_PARALLEL, StrategyConfig, check_ranks
from torso.settings import read_settings
from torso.split.client.config import SplitConfig
from torso.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from torso.training.schedule import check_target


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run. Names are the flags' names."""

    model: str = "mini"
    """mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a folder in Hugging Face layout."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Whether the base weights are read or drawn."""
    base_seed: int = 0
    """Seed of random base weights."""
    tokenizer: str | None = None
    """Folder of another tokenizer than the model's."""
    data: str = "demo"
    """demo, e2e, e2e:PATH (zip, folder or CSV files), or jsonl:PATH."""
    max_examples: int | None = None
    """Train on this many examples only, the first ones."""
    max_tokens: int | None = None
    """Longest example; longer ones are left out and counted. Default: the model's positions."""
    strategy: Literal["single", "ddp", "fsdp", "hsdp", "split"] = "single"
    """single: the whole model in this process. ddp: on every rank. fsdp: in shares on all ranks. hsdp: several copies,
    each in shares. split: the body on a server."""
    nproc: int = 2
    """Ranks of ddp, fsdp and hsdp on this machine; under torchrun, those that it started."""
    shard_size: int | None = None
    """Of hsdp: ranks that share one copy. Default: half of them, at least 2."""
    deterministic: bool = False
    """ddp, fsdp, hsdp: the bits of single, whatever the number of ranks; costs time and memory."""
    activation_checkpointing: bool = False
    """Keep only the inputs of blocks, and compute activations again in the backward pass; not with split."""
    compile: bool = False
    """Blocks run under torch.compile; not with split."""

    adapter: Literal["lora", "dora", "none"] = "lora"
    """Kind of adapter; none trains all weights."""
    lora_rank: int = 8
    """Rank of the low-rank product."""
    alpha: float = 16.0
    """Numerator of its scaling."""
    adapter_dropout: float = 0.0
    """Dropout of the low-rank path's input."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) in place of alpha / rank."""
    targets: tuple[str, ...] = TARGETS
    """Linear layers that get an adapter."""
    modules: tuple[str, ...] = ()
    """Exactly these layers, each h.2.attn.c_attn=RANK:ALPHA, in place of targets, lora_rank and alpha."""
    init_adapter: str | None = None
    """Folder of a peft adapter to start from; it brings its own kind, rank, alpha and layers."""
    init_adapter_sha256: str | None = None
    """Its fingerprint, recorded in the run; where it is given, an adapter with another is refused."""
    head_cut: int | None = None
    """First block of the body. Default: 2, or 1 with fewer than five blocks."""
    tail_cut: int | None = None
    """First block of the tail. Default: the number of blocks less head_cut's default."""
    dropout: float = 0.0
    """GPT-2's own dropout, at all its places."""

    epochs: int = 1
    """Passes over the training examples."""
    seed: int = 0
    """Of shuffles, dropout masks and initial adapters."""
    global_batch_size: int = 16
    """Sequences in one optimizer step."""
    micro_batch_size: int = 4
    """Sequences in one forward and backward."""
    learning_rate: float = 1e-3
    """After warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Constant can always be extended; the others fall until --horizon-epochs."""
    warmup_steps: int = 0
    """Steps over which the rate rises from 0."""
    horizon_epochs: float | None = None
    """Epochs after which a falling schedule ends."""
    final_share: float = 0.0
    """Share of the rate that is left there."""
    max_grad_norm: float = 1.0
    """Clip the global norm to this; 0 leaves it."""
    beta1: float = 0.9
    """AdamW."""
    beta2: float = 0.999
    """AdamW."""
    eps: float = 1e-8
    """AdamW."""
    weight_decay: float = 0.0
    """AdamW."""

    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """What is computed in; auto takes fp32 or bf16, what the device does natively. What is trained is always fp32.
    fp16 scales losses; not with split."""
    device: tuple[str, ...] = ("auto",)
    """Devices by client rank, used in turn: cpu, cuda:1, …; auto takes the GPUs in order, or the CPU."""
    threads: int | None = None
    """Intra-op threads of each rank on a CPU. Default: all cores for one process, 1 where several share the machine."""
    allow_inexact: bool = False
    """Go on where the arithmetic differs from the run's or the server's; marks the run."""

    server: tuple[str, ...] = ("http://127.0.0.1:8700",)
    """Body servers; the first that answers is used."""
    clients: int = 1
    """Client ranks on this machine."""
    window: int = 4
    """Micro-batches that a client rank has in flight."""
    wire: Literal["safetensors", "json"] = "safetensors"
    """How tensors travel."""
    read_timeout_s: float = 120.0
    """A worker that says nothing for this long is gone; one that computes says so every 10 seconds."""
    patience_s: float = 600.0
    """How long to wait for a lost server."""

    checkpoint_every_steps: int = 200
    """Save after this many steps, and at each epoch's end."""
    checkpoint_every_minutes: float = 10.0
    """Save after this many minutes too."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept, at least 2; the best one is kept besides."""
    keep_epochs: int = 5
    """Besides, the ends of so many newest epochs: all of them are scored on dev when training ends."""
    best_by: Literal[
        "perplexity",
        "official_bleu",
        "official_nist",
        "official_rouge_l",
        "official_cider",
        "hf_bleu",
        "hf_meteor",
        "slot_error_rate",
        "name_copied",
    ] = "perplexity"
    """Which score on dev decides which checkpoint is the best."""
    evaluate: Literal["dev", "test", "none"] = "dev"
    """What is decoded and scored at the end of training."""

    def __post_init__(self) -> None:
        # TOML and the command line may bring lists
        for name in ("targets", "modules", "server", "device"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def checked(self) -> RunConfig:
        """Itself, when all settings are in range and agree; raises a RequestError naming what does not.

        Not done on construction: the command line's parser would swallow the remedy.
        """
        for build in ("training", "schedule_config", "optimizer", "split"):
            getattr(self, build)
        check_target(self.schedule_config, self.epochs)
        self._check_rest()
        return self

    def _check_rest(self) -> None:
        if self.adapter != "none":
            _ = self.adapter_config
        elif self.strategy == "split":
            raise ConfigError(
                "strategy split trains adapters, and adapter is none", "Give lora or dora, or another strategy."
            )
        if self.adapter == "none" and self.adapter_dropout:
            raise ConfigError("adapter_dropout is given, and adapter is none", "Leave one of them out.")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout is {self.dropout}", "Give a number from 0 up to, not including, 1.")
        if self.strategy == "single" and self.clients != 1:
            raise ConfigError(
                f"clients is {self.clients} with strategy single",
                "Several clients need --strategy split; give --clients 1.",
            )
        if self.strategy in DATA_PARALLEL:
            check_ranks(self.strategy, self.nproc, self.shard_size)
        for name in ("max_examples", "max_tokens", "threads", "nproc"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}", "Give 1 or more.")
        if self.strategy == "split":
            self._check_split()

    def _check_split(self) -> None:
        for name in ("activation_checkpointing", "compile"):
            if getattr(self, name):
                raise ConfigError(f"{name} is given with strategy split", "It is for the other strategies.")
        if self.dtype == "fp16":
            raise ConfigError("dtype is fp16 with strategy split", "Losses are not scaled across parties; give bf16.")
        if self.head_cut == 0:
            raise ConfigError(
                "head_cut is 0 with strategy split", "Plain embeddings would cross the wire; give 1 or more."
            )

    @property
    def num_ranks(self) -> int:
        """Ranks that train."""
        if self.strategy == "split":
            return self.clients
        return self.nproc if self.strategy in DATA_PARALLEL else 1

    @property
    def strategy_config(self) -> StrategyConfig:
        """Of a whole model."""
        return StrategyConfig(
            name=self.strategy,  # type: ignore[arg-type]
            deterministic=self.deterministic,
            shard_size=self.shard_size,
            recompute=self.activation_checkpointing,
            compile=self.compile,
        )

    @property
    def adapter_config(self) -> AdapterConfig:
        """The adapters'; there must be some."""
        assert self.adapter != "none"
        return AdapterConfig(
            kind=self.adapter,
            lora_rank=self.lora_rank,
            alpha=self.alpha,
            dropout=self.adapter_dropout,
            rslora=self.rslora,
            targets=self.targets,
            modules=self.modules,
        )

    @property
    def training(self) -> TrainingConfig:
        """The loop's."""
        return TrainingConfig(**self._pick(TrainingConfig))

    @property
    def schedule_config(self) -> ScheduleConfig:
        """The learning rate's."""
        return ScheduleConfig(**self._pick(ScheduleConfig))

    @property
    def optimizer(self) -> OptimizerConfig:
        """AdamW's."""
        return OptimizerConfig(**self._pick(OptimizerConfig))

    @property
    def split(self) -> SplitConfig:
        """The wire's."""
        return SplitConfig(servers=self.server, **self._pick(SplitConfig))

    def cuts(self, n_layer: int) -> Cuts:
        """Where the model is cut."""
        default = Cuts.default(n_layer)
        head = default.head_cut if self.head_cut is None else self.head_cut
        tail = default.tail_cut if self.tail_cut is None else self.tail_cut
        return Cuts(head, tail, n_layer)

    def _pick(self, cls: type[Any]) -> dict[str, Any]:
        """The fields that another config has under the same name."""
        names = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(self)}
        return {name: getattr(self, name) for name in names}

    def to_toml(self) -> str:
        """All settings; those that are None are left out."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return tomli_w.dumps({n: list(v) if isinstance(v, tuple) else v for n, v in values.items()})

    @classmethod
    def from_toml(cls, path: Path) -> RunConfig:
        """Settings in a file, the rest at their defaults; raises ConfigError naming what is wrong."""
        return cls(**read_settings(path, cls)).checked()
