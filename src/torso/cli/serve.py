"""`torso serve`: a group of body workers on this machine."""

from __future__ import annotations

import dataclasses
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torso.cli.parsing import parse
from torso.errors import ConfigError
from torso.parallel.launch import REFILL_AFTER_S
from torso.split.server.config import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """Lend the middle blocks of a model."""

    model: str = "mini"
    """mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a folder in Hugging Face layout."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Whether the base weights are read or drawn."""
    base_seed: int = 0
    """Seed of random base weights."""
    layers: str | None = None
    """First and last-plus-one block, e.g. 2:10. Default: all but two at either end."""
    workers: int = 1
    """Worker processes; worker r listens at port + r."""
    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8700
    """Port of worker 0."""
    device: tuple[str, ...] = ("auto",)
    """Devices by rank, used in turn; auto takes the GPUs in order, or the CPU."""
    threads: int | None = None
    """Intra-op threads of each worker on a CPU. Default: 1, as for split clients."""
    job_timeout_s: float = 1800.0
    """A job not heard from for this long gives its memory back."""
    max_body_bytes: int = 1 << 30
    """Largest request."""
    max_micro_batches: int = 1024
    """Most micro-batches of one step of a job."""
    group_timeout_s: float = 60.0
    """A collective among the workers that takes longer has failed; a worker that is silent for so long is frozen."""
    hang_timeout_s: float = 600.0
    """A computation that takes longer hangs, and the workers are restarted; what only takes long goes on."""


def main(arguments: Sequence[str]) -> int:
    """Check, start the workers, say when they are ready, and wait."""
    options = parse(ServeArguments, "serve", arguments)
    from torso.cli.watch import watch
    from torso.parallel.launch import launch
    from torso.parallel.ports import check_free

    settings = _settings(options)
    check_free(settings.host, settings.port, settings.workers)
    with tempfile.TemporaryDirectory(prefix="torso-serve-") as folder:
        path = Path(folder) / "settings.json"
        progress = Path(folder) / "progress"
        settings = dataclasses.replace(settings, progress_file=str(progress))
        settings.write(path)
        ended = threading.Event()
        threading.Thread(target=watch, args=(settings, ended), daemon=True).start()
        try:
            launch(
                "torso.split.server.rank",
                [str(path)],
                num_ranks=settings.workers,
                threads=settings.threads,
                progress=lambda: _progress(progress),
            )
        except KeyboardInterrupt:
            print("torso: the body server has stopped", file=sys.stderr)
        finally:
            ended.set()
    return 0


def _progress(file: Path) -> tuple[int, int]:
    """Changes when a step was committed, and with time: failures that are far apart are no crash loop."""
    committed = file.stat().st_mtime_ns if file.exists() else 0
    return committed, int(time.monotonic() / REFILL_AFTER_S)


def _settings(options: ServeArguments) -> ServerSettings:
    from torso.cli.assembly import choose_device
    from torso.model.hub import open_source
    from torso.model.names import expected_shapes, layer_of

    source = open_source(options.model, options.init, options.base_seed)
    head_cut, tail_cut = parse_layers(options.layers, source.config.n_layer)
    body = range(head_cut, tail_cut)
    source.check([name for name in expected_shapes(source.config) if layer_of(name) in body])
    names = options.device if options.device != ("auto",) else ("auto",) * options.workers
    return ServerSettings(
        model=options.model,
        instance=secrets.token_hex(8),
        secret=secrets.token_hex(16),
        init=options.init,
        seed=options.base_seed,
        head_cut=head_cut,
        tail_cut=tail_cut,
        host=options.host,
        port=options.port,
        workers=options.workers,
        devices=tuple(str(choose_device(name, rank)) for rank, name in enumerate(names)),
        threads=1 if options.threads is None else options.threads,
        job_timeout_s=options.job_timeout_s,
        max_body_bytes=options.max_body_bytes,
        max_micro_batches=options.max_micro_batches,
        group_timeout_s=options.group_timeout_s,
        hang_timeout_s=options.hang_timeout_s,
    )


def parse_layers(text: str | None, n_layer: int) -> tuple[int, int]:
    """ "2:10" to (2, 10); raises ConfigError. A server lends at least one block and never the first."""
    from torso.model.config import Cuts

    if text is None:
        cuts = Cuts.default(n_layer)
        return cuts.head_cut, cuts.tail_cut
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise ConfigError(f"layers is {text!r}", "Write first:last, e.g. 2:10 for blocks 2 to 9.")
    cuts = Cuts(int(first), int(last), n_layer)
    if cuts.head_cut < 1 or not cuts.body:
        raise ConfigError(f"layers is {text!r}", "A server lends at least one block, and never block 0.")
    return cuts.head_cut, cuts.tail_cut
