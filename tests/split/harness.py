"""Workers and client ranks as threads of one process, over real sockets on free ports."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import uvicorn
from tests.split.local_body import LocalBody

from torso.adapters.config import AdapterConfig
from torso.adapters.inject import inject
from torso.data.encoding import Example
from torso.data.micro_batches import BatchPlan
from torso.model.blocks import ATTENTION
from torso.model.config import Cuts, GPT2Config
from torso.model.stages import GPT2, Body, GPT2WithLoss, Head, Tail
from torso.model.weights import RandomWeights, build, save_folder
from torso.parallel.arithmetic import describe
from torso.parallel.group import Group
from torso.parallel.ports import free_ports
from torso.parallel.strategy import Single
from torso.records import EpochRecord, StepRecord
from torso.split.client.job import JobSpec
from torso.split.client.remote_body import RemoteBody
from torso.split.client.transport import Transport, connect
from torso.split.server.app import create_app
from torso.split.server.config import ServerSettings
from torso.split.server.leader import Leader, Member
from torso.split.server.members import HttpMember
from torso.split.server.worker import Worker
from torso.training import checkpoint as checkpoints
from torso.training import whole
from torso.training.body import BodyExecution
from torso.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from torso.training.ends import Ends
from torso.training.learner import Learner
from torso.training.loop import Trainer
from torso.training.part import TrainablePart
from torso.training.run_directory import MetricsLog, RunDirectory
from torso.training.staged import StagedModel

CONFIG = GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=4, n_head=2)
CUTS = Cuts(1, 3, 4)
SEED = 5
DORA = AdapterConfig(kind="dora", lora_rank=2, alpha=4.0)
TRAINING = TrainingConfig(global_batch_size=8, micro_batch_size=2, seed=3, checkpoint_every_steps=2)
OPTIMIZER = OptimizerConfig(weight_decay=0.01)


def base_folder(path: Path) -> Path:
    """A tiny random GPT-2 on disk."""
    source = RandomWeights(CONFIG, SEED)
    model = build(lambda config, cuts: GPT2(config), source, CUTS)
    save_folder(path, CONFIG, dict(model.state_dict()))
    return path


def examples(count: int = 22) -> list[Example]:
    """Sequences of different lengths."""
    return [
        Example(
            prompt_ids=tuple((7 * i + j) % 60 for j in range(3 + i % 5)),
            target_ids=tuple((11 * i + 3 * j) % 60 for j in range(2 + i % 7)),
            group=i,
        )
        for i in range(count)
    ]


class Servers:
    """A group of workers, each with its own HTTP server, in threads."""

    def __init__(self, model: Path | str, workers: int, **settings: Any) -> None:
        port = settings.pop("port", 0) or free_ports(workers)
        self._port = settings.pop("listen", port)
        """Where worker 0 really listens, when something stands between it and the port that it tells clients."""
        self.settings = ServerSettings(
            model=str(model),
            instance="feedc0de",
            secret="s",
            head_cut=settings.pop("head_cut", CUTS.head_cut),
            tail_cut=settings.pop("tail_cut", CUTS.tail_cut),
            port=port,
            workers=workers,
            **settings,
        )
        self.url = f"http://127.0.0.1:{self.settings.port}"
        self.workers: list[Worker] = []
        self.given_up: list[int] = []
        """Workers that asked to be restarted; here nobody does it."""
        self._servers: list[uvicorn.Server] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Servers:
        store, made = dist.HashStore(), dict[int, Worker]()

        def make(rank: int) -> None:
            count = self.settings.workers
            group = Group.local(store, rank, count, 10.0) if count > 1 else Group.solo()
            made[rank] = Worker(self.settings, group, on_broken_group=lambda: self.given_up.append(rank))

        _in_threads(self.settings.workers, make)
        self.workers = [made[rank] for rank in range(self.settings.workers)]
        for rank, worker in enumerate(self.workers):
            self._serve(worker, rank)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.should_exit = True
        for thread in self._threads:
            thread.join(10)

    def _serve(self, worker: Worker, rank: int) -> None:
        members: list[Member] = [worker]
        ports = range(self._port + 1, self._port + self.settings.workers)
        members += [HttpMember(f"http://127.0.0.1:{port}", "s", 20.0) for port in ports]
        app = create_app(worker, Leader(worker, members) if rank == 0 else None)
        config = uvicorn.Config(app, port=self._port + rank, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), f"nobody could listen at port {config.port}"
            time.sleep(0.01)
        self._servers.append(server)
        self._threads.append(thread)


def _in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results of `work(rank)` in `count` threads; the first error is raised."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:  # handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Quiet:
    """A listener that remembers messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_step(self, record: StepRecord, last_step: int) -> None:
        """Nothing."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Nothing."""

    def on_message(self, text: str) -> None:
        """Kept."""
        self.messages.append(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a small run is like."""

    folder: Path
    adapter: AdapterConfig = DORA
    dropout: float = 0.0
    clients: int = 1
    servers: tuple[str, ...] = ()
    wire: str = "safetensors"
    read_timeout_s: float = 20.0
    patience_s: float = 20.0
    connect: Callable[..., Transport] | None = None
    """Connections of its own kind."""
    training: TrainingConfig = TRAINING
    optimizer: OptimizerConfig = OPTIMIZER

    def spec(self) -> JobSpec:
        """The body's job."""
        return JobSpec(
            cuts=CUTS,
            base_fingerprint=None,
            adapter=self.adapter,
            optimizer=self.optimizer,
            dtype="fp32",
            seed=self.training.seed,
            dropout=(self.dropout,) * 3,
            arithmetic=describe(torch.device("cpu"), "fp32", ATTENTION),
        )

    def trainer(
        self, run: RunDirectory, group: Group, learner: Learner, listener: Quiet, stop: Callable[[], bool]
    ) -> Trainer:
        """One rank's trainer."""
        plan = BatchPlan(
            examples(), self.training.seed, self.training.global_batch_size, self.training.micro_batch_size
        )
        return Trainer(
            learner=learner,
            plan=plan,
            training=self.training,
            schedule=ScheduleConfig(learning_rate=0.01, warmup_steps=2),
            group=group,
            run=run,
            info={},
            listener=listener,
            stop_requested=stop,
        )

    def _config(self) -> GPT2Config:
        return dataclasses.replace(CONFIG, embd_pdrop=self.dropout, attn_pdrop=self.dropout, resid_pdrop=self.dropout)

    def learner(self, run: RunDirectory, group: Group) -> Learner:
        """In stages, the body on a server, where one is given, else whole; several ranks have it in stages too."""
        if not self.servers and group.world_size == 1:
            return self._whole(group)
        source, seed = RandomWeights(CONFIG, SEED), self.training.seed
        head = build(Head, source, CUTS, config=self._config())
        tail = build(Tail, source, CUTS, config=self._config())
        parameters = inject(head, self.adapter, seed) | inject(tail, self.adapter, seed)
        ends = Ends(head, tail, TrainablePart(parameters, self.optimizer), seed, torch.device("cpu"))
        return StagedModel(ends, self._remote(run, group) if self.servers else self._local(group), group)

    def _local(self, group: Group) -> LocalBody:
        body = build(Body, RandomWeights(CONFIG, SEED), CUTS, config=self._config())
        part = TrainablePart(inject(body, self.adapter, self.training.seed), self.optimizer)
        return LocalBody(BodyExecution(body, part, self.training.seed), group)

    def _whole(self, group: Group) -> Learner:
        source, seed = RandomWeights(CONFIG, SEED), self.training.seed
        model = build(lambda config, cuts: GPT2WithLoss(config), source, CUTS, config=self._config())
        initial = {name: p.detach().clone() for name, p in inject(model, self.adapter, seed).items()}
        recipe = whole.Recipe(
            initial=initial.__getitem__,
            shapes={name: tuple(p.shape) for name, p in initial.items()},
            optimizer=self.optimizer,
            seed=seed,
            device=torch.device("cpu"),
        )
        return whole.WholeModel(Single(model), group, recipe)

    def _remote(self, run: RunDirectory, group: Group) -> RemoteBody:
        return RemoteBody(
            job=run.state.job,
            spec=self.spec(),
            servers=self.servers,
            transport=(self.connect or connect)(self.servers, self.read_timeout_s, self._media_type()),
            group=group,
            raise_generation=run.raise_generation,
            patience_s=self.patience_s,
        )

    def _media_type(self) -> str:
        return "application/json" if self.wire == "json" else "application/vnd.safetensors"

    def train(self, last_step: int, listener: Quiet | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Create the run where there is none, and train it up to a step."""
        if not (self.folder / "run.json").exists():
            RunDirectory.create(self.folder, "", 1)
        run, store = RunDirectory(self.folder), dist.HashStore()

        def work(rank: int) -> None:
            group = Group.local(store, rank, self.clients, 20.0) if self.clients > 1 else Group.solo()
            with contextlib.closing(self.learner(run, group)) as learner:
                self.trainer(run, group, learner, listener or Quiet(), stop).run(last_step)

        _in_threads(self.clients, work)

    def digest(self) -> str:
        """Of the newest checkpoint."""
        newest = checkpoints.load_newest(self.folder / "checkpoints")
        assert newest is not None
        return newest.digest()

    def curve(self) -> list[tuple[int, float, float]]:
        """(step, loss, gradient norm) of each logged step."""
        records = [r for r in MetricsLog(self.folder).read() if isinstance(r, StepRecord)]
        return [(r.step, r.loss, r.grad_norm) for r in records]


@contextlib.contextmanager
def serving(model: Path | str, workers: int, **settings: Any) -> Iterator[Servers]:
    """Shorthand."""
    with Servers(model, workers, **settings) as servers:
        yield servers
