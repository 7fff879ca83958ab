"""Which model a command decodes with, a run's or a peft adapter's, and the settings and state that it stands for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from torso.cli.adapters import read_adapter, start_from
from torso.cli.assembly import num_threads
from torso.cli.parsing import refuse_idle
from torso.config import RunConfig
from torso.errors import ConfigError
from torso.evaluation.decoding import DecodingConfig
from torso.training.checkpoint import Checkpoint
from torso.training.run_directory import RunDirectory

_ONLY_OF = {
    "beam": ("beams", "length_penalty", "no_repeat_ngram"),
    "sample": ("temperature", "top_k", "top_p", "sampling_seed"),
}
"""Settings of one way of decoding."""


@dataclass(frozen=True, kw_only=True)
class ModelArguments(DecodingConfig):
    """What `evaluate` and `generate` have in common."""

    run_dir: Annotated[Path | None, tyro.conf.Positional] = None
    """The run."""
    adapter: Path | None = None
    """A peft adapter's folder in place of a run."""
    model: str = "mini"
    """The adapter's model."""
    tokenizer: str | None = None
    """With --adapter: folder of another tokenizer than the model's."""
    threads: int | None = None
    """With --adapter: intra-op threads on a CPU. Default: all cores."""
    checkpoint: str = "last"
    """Of a run: last; best, by the run's --best-by on dev; or a step."""
    server: tuple[str, ...] = ()
    """Other body servers than the run's."""
    whole: bool = False
    """The whole model in this process, though the run is split."""
    device: tuple[str, ...] = ()
    """Another device than the run's."""
    allow_inexact: bool = False
    """Go on where the server's arithmetic is another."""
    json: bool = False
    """Print one JSON document."""

    def check_model(self, *only_adapter: str) -> None:
        """Raise ConfigError unless one model is named, with nothing that means nothing with it.

        `only_adapter` are settings of the command that belong to an adapter, beside those here.
        """
        check_one(self.run_dir, self.adapter)
        if self.run_dir is None:
            refuse_idle(self, "--adapter", ["checkpoint", "server", "whole", "allow_inexact"])
        else:
            refuse_idle(self, "a run", ["model", "tokenizer", "threads", *only_adapter])
        for decoding, names in _ONLY_OF.items():
            if self.decoding != decoding:
                refuse_idle(self, f"--decoding {self.decoding}", names)

    def of_run(self, run: RunDirectory) -> RunConfig:
        """The run's settings, with other servers and devices where they are given, for this command alone."""
        config = RunConfig.from_toml(run.path / "config.toml")
        if self.whole:
            # with the split's number of threads: the bits depend on it
            config = dataclasses.replace(config, strategy="single", clients=1, threads=num_threads(config))
        return dataclasses.replace(
            config,
            server=tuple(self.server) or config.server,
            device=tuple(self.device) or config.device,
            allow_inexact=self.allow_inexact or config.allow_inexact,
        ).checked()

    def of_adapter(self, **settings: Any) -> tuple[RunConfig, Checkpoint]:
        """Settings to use the adapter in this process, and its state."""
        given = RunConfig(
            model=self.model,
            tokenizer=self.tokenizer,
            threads=self.threads,
            device=self.device or ("auto",),
            strategy="single",
            **settings,
        )
        adapter, config = read_adapter(self.adapter or Path(), given.checked())
        return config, start_from(adapter)


def check_one(run_dir: Path | None, adapter: Path | None) -> None:
    """Raise ConfigError unless one of them is given."""
    if (run_dir is None) == (adapter is None):
        raise ConfigError("neither or both of a run and --adapter are given", "Give one of them.")
