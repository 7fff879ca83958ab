"""From settings to a plan: what a step has in it, what pieces of it cost here, what each strategy would need."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torso.config import RunConfig
from torso.errors import ConfigError
from torso.files import replace_atomically
from torso.model.config import Cuts
from torso.model.hub import config_of
from torso.parallel.arithmetic import native_dtype
from torso.parallel.launch import launch
from torso.planner.calibration import Calibration, Entry, OutdatedCalibrationError, costs_of, read_calibration
from torso.planner.hardware import LINKS, Device, Link
from torso.planner.predict import Prediction, predict
from torso.planner.setting import STRATEGIES, Setting, Strategy

LOOPBACK = LINKS["loopback"]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of sequences, with padding."""

    mean: int
    longest: int
    target_share: float
    """Of all positions."""


def lengths_of(config: RunConfig) -> Lengths:
    """Of the data's micro-batches; reads and tokenizes it."""
    from torso.cli.assembly import Assembly

    # drawn weights, which are never made: the shape is all that is needed
    assembly = Assembly(dataclasses.replace(config, strategy="single", init="random"))
    plan = assembly.plan
    steps = range(1, min(plan.steps_per_epoch, 64) + 1)
    batches = [batch for step in steps for batch in plan.step(step).micro_batches]
    sequences = sum(len(batch.lengths) for batch in batches)
    positions = sum(batch.num_padded_tokens for batch in batches)
    return Lengths(
        mean=max(1, round(positions / sequences)),
        longest=max(batch.token_ids.shape[1] for batch in batches),
        target_share=sum(batch.num_targets for batch in batches) / positions,
    )


def setting_of(config: RunConfig, lengths: Lengths, devices: int, device: Device, link: Link) -> Setting:
    """What is planned for, as the run's settings have it."""
    shape = config_of(config.model)
    p = config.dropout
    cuts = config.cuts(shape.n_layer)
    return Setting(
        shape=dataclasses.replace(shape, embd_pdrop=p, attn_pdrop=p, resid_pdrop=p),
        adapter=None if config.adapter == "none" else config.adapter_config,
        cuts=Cuts(cuts.head_cut, cuts.tail_cut, shape.n_layer),
        global_batch_size=config.global_batch_size,
        micro_batch_size=config.micro_batch_size,
        tokens=lengths.mean,
        longest=lengths.longest,
        target_share=lengths.target_share,
        dtype=_dtype(config, device),
        shard_size=config.shard_size,
        window=config.window,
        devices=devices,
        device=device,
        link=link,
        memory_limit=device.memory_bytes,
        threads_alone=config.threads or os.cpu_count() or 1,
        threads_each=config.threads or 1,
    )


def _dtype(config: RunConfig, device: Device) -> str:
    """What `auto` stands for (`native_dtype`) on this machine's CPU, or on a GPU that need not be here."""
    if config.dtype != "auto":
        return config.dtype
    if device.is_cpu:
        return native_dtype(torch.device("cpu"))
    return "bf16" if "bf16" in device.peak_flops else "fp32"


def machine() -> dict[str, str]:
    """What measured pieces depend on beside the workload."""
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
    }


def default_file() -> Path:
    """Where calibrations are kept unless it is said otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torso" / "calibration.json"


class OtherMachineError(ConfigError):
    """A calibration says nothing of this machine."""


def load(path: Path) -> Calibration:
    """Raises ConfigError, its OtherMachineError when it was made on another machine."""
    found = read_calibration(path)
    ours = machine()
    differing = [f"{n} {found.machine.get(n)} there, {v} here" for n, v in ours.items() if found.machine.get(n) != v]
    if differing:
        what = f"{path} was made on another machine: {'; '.join(differing)}"
        raise OtherMachineError(what, "Measure with --calibrate and another file.")
    return found


def known_or_measured(setting: Setting) -> Calibration:
    """The default file's calibration; where it says nothing of this number of processes, it is made first."""
    path = default_file()
    try:
        calibration = load(path)
        for strategy in STRATEGIES:
            calibration.costs(setting, strategy)
    except ConfigError:
        calibration = calibrate(setting, path)
    return calibration


def calibrate(setting: Setting, path: Path) -> Calibration:
    """Time the pieces of a step, in one process and in as many as there are devices.

    Kept in the file, beside what it has.
    """
    if not setting.device.is_cpu:
        raise ConfigError(
            f"device_kind is {setting.device.name}", "Only CPUs can be calibrated yet; leave --calibrate out."
        )
    from torso.cli.probe import probe

    imported, full = _import_bytes(), setting.adapter is None
    known = _known(path) or Calibration(machine=machine(), import_bytes=imported)
    entries = []
    for processes, own in dict.fromkeys(((1, setting.threads_alone), (setting.devices, setting.threads_each))):
        print(f"plan: timing the pieces of a step in {processes} × {own} threads", file=sys.stderr)
        costs = costs_of(_measure(setting, processes, own))
        several = setting.share(processes) > 1
        overheads = known.overheads(processes, full, several) or probe(processes, full, several, imported)
        entries.append(Entry.of(setting, processes, own, costs, overheads))
    known = dataclasses.replace(known, import_bytes=imported).with_entries(entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, known.to_json().encode())
    return known


def _known(path: Path) -> Calibration | None:
    """What new measurements are added to; None where they begin a file. Another machine's is kept where named."""
    try:
        return load(path) if path.exists() else None
    except OutdatedCalibrationError:
        return None
    except OtherMachineError:
        if path != default_file():
            raise
        return None


def _import_bytes() -> float:
    """Resident memory of a fresh training process after its imports."""
    work = "import torso.cli.assembly, torso.training.loop, torso.planner.measure as m; print(m.resident_bytes())"
    done = subprocess.run([sys.executable, "-c", work], check=True, capture_output=True, text=True)
    return float(done.stdout)


def _measure(setting: Setting, processes: int, threads: int) -> dict[str, Any]:
    """In fresh processes, so that nothing of this one counts."""
    with tempfile.TemporaryDirectory(prefix="torso-plan-") as folder:
        request, out = Path(folder) / "request.json", Path(folder) / "out.json"
        request.write_text(json.dumps({"setting": dataclasses.asdict(setting), "threads": threads}), encoding="utf-8")
        launch("torso.planner.rank", [str(request), str(out)], num_ranks=processes, threads=threads, max_restarts=0)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def predictions(setting: Setting, calibration: Calibration | None) -> dict[Strategy, Prediction]:
    """Of every strategy, from a calibration, or from nominal figures on a GPU. Raises ConfigError."""
    if calibration is None:
        return predict(setting)
    return predict(setting, calibration.costs, calibration.held)


def commands(words: Sequence[str], setting: Setting, strategy: Strategy) -> list[str]:
    """What to type: `torso train`, and for a split `torso serve` first. `words` are the settings that all have."""
    train = ["torso", "train", *words, "--strategy", strategy]
    if strategy in ("ddp", "fsdp", "hsdp"):
        return [" ".join([*train, "--nproc", str(setting.devices)])]
    if strategy == "single":
        return [" ".join(train)]
    taken = {"--model", "--init", "--base-seed", "--threads"}
    pairs = list(zip(words[::2], words[1::2], strict=False))
    serve = ["torso", "serve", *(word for pair in pairs if pair[0] in taken for word in pair)]
    serve += ["--layers", f"{setting.cuts.head_cut}:{setting.cuts.tail_cut}", "--workers", str(setting.workers)]
    return [" ".join(serve), " ".join([*train, "--clients", str(setting.clients)])]
