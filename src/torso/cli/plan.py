"""`torso plan`: each strategy's memory and time for a model, a batch and some devices; which to take, and why."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torso.adapters.config import TARGETS
from torso.cli.parsing import parse
from torso.config import RunConfig
from torso.errors import ConfigError, WeightsError
from torso.model.config import SIZES
from torso.planner.calibration import Calibration
from torso.planner.hardware import bytes_of, device_of, link_of
from torso.planner.predict import Prediction
from torso.planner.recommend import Recommendation, recommend
from torso.planner.setting import STRATEGIES, Setting, Strategy
from torso.records import finite
from torso.report.units import duration, size


@dataclass(frozen=True, kw_only=True)
class PlanArguments:
    """What each strategy would need: memory of a device, seconds of a step; which one to take, and why."""

    model: str = "mini"
    """mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a folder in Hugging Face layout."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Whether the base weights are read or drawn."""
    tokenizer: str | None = None
    """Folder of another tokenizer than the model's."""
    data: str = "demo"
    """As for `torso train`; read only where --tokens is not given."""
    adapter: Literal["none", "lora", "dora"] = "lora"
    """Kind of adapter; none trains all parameters."""
    lora_rank: int = 8
    """Rank of the low-rank product."""
    adapter_dropout: float = 0.0
    """Dropout of the low-rank path's input."""
    targets: tuple[str, ...] = TARGETS
    """Linear layers that get an adapter."""
    head_cut: int | None = None
    """First block of the body. Default: as for `torso train`."""
    tail_cut: int | None = None
    """First block of the tail."""
    dropout: float = 0.0
    """GPT-2's own dropout."""
    global_batch_size: int = 16
    """Sequences in one optimizer step."""
    micro_batch_size: int = 4
    """Sequences in one forward and backward."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What is computed in."""
    window: int = 4
    """Micro-batches that a rank with an adapter has in flight."""
    threads: int | None = None
    """Intra-op threads of each process on a CPU. Default: all cores for single, 1 for the others."""

    tokens: int | None = None
    """Length of all sequences. Default: the data's own lengths."""
    target_share: float | None = None
    """Share of positions that carry loss. Default: the data's own, or 1 with --tokens."""
    devices: int = 1
    """How many devices there are, all alike."""
    device_kind: str = "cpu"
    """cpu, t4, v100, a10, l4, rtx4090, a100-40gb, a100-80gb, h100 or h200."""
    device_memory: str | None = None
    """What each device offers, e.g. 16GB or 16GiB. Default: the kind's own; no limit for cpu."""
    link: str = "loopback"
    """What joins them: loopback (as measured), pcie3, pcie4, nvlink2, nvlink3, nvlink4, or a rate such as 10Gbit/s."""
    calibrate: bool = False
    """Time a step's pieces on this machine first, a minute or so (CPU)."""
    against: Path | None = None
    """Folder of a `torso compare`: predictions for its settings beside what it measured."""
    calibration: Path | None = None
    """File of such measurements. Default: ~/.cache/torso/calibration.json."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    """Predict, recommend, print; 0 also where nothing fits."""
    options = parse(PlanArguments, "plan", arguments)
    from torso.cli import planning

    if options.against is not None:
        return _against(options, options.against)
    setting = _setting(options)
    found = planning.predictions(setting, _calibration(options, setting))
    advice = recommend(found)
    words = _words(options)
    typed = [] if advice.strategy is None else planning.commands(words, setting, advice.strategy)
    if options.json:
        print(json.dumps(finite(document(setting, found, advice, typed)), allow_nan=False))
    else:
        print(text(setting, found, advice, typed))
    return 0


def _calibration(options: PlanArguments, setting: Setting) -> Calibration | None:
    """Made, read, or none where nominal figures do."""
    from torso.cli import planning

    path = options.calibration or planning.default_file()
    if options.calibrate:
        return planning.calibrate(setting, path)
    needed = setting.device.is_cpu or options.calibration is not None
    return planning.load(path) if needed else None


def _against(options: PlanArguments, path: Path) -> int:
    from torso.cli.against import document_of, judge, text_of

    device, link = device_of(options.device_kind), link_of(options.link)
    judged = judge(path, device, link, _limit(options), lambda setting: _calibration(options, setting))
    print(json.dumps(finite(document_of(judged)), allow_nan=False) if options.json else text_of(judged))
    return 0


def _setting(options: PlanArguments) -> Setting:
    from torso.cli import planning

    config = RunConfig(**_run_settings(options)).checked()
    share = options.target_share
    if options.tokens is not None and options.tokens < 2:
        raise ConfigError(f"tokens is {options.tokens}", "Give 2 or more: the first of a sequence is never predicted.")
    if options.tokens is None:
        lengths = planning.lengths_of(_readable(config))
        lengths = dataclasses.replace(lengths, target_share=lengths.target_share if share is None else share)
    else:
        lengths = planning.Lengths(
            mean=options.tokens, longest=options.tokens, target_share=1.0 if share is None else share
        )
    device, link = device_of(options.device_kind), link_of(options.link)
    setting = planning.setting_of(config, lengths, options.devices, device, link)
    setting = dataclasses.replace(setting, adapter=None) if options.adapter == "none" else setting
    return dataclasses.replace(setting, memory_limit=_limit(options))


def _readable(config: RunConfig) -> RunConfig:
    """The same with `mini`'s tokenizer where the model's own cannot be had: a plan needs lengths alone."""
    from torso.model.hub import tokenizer_folder

    if config.tokenizer is not None or config.model not in SIZES:
        return config
    try:
        tokenizer_folder(config.model)
    except WeightsError as error:
        print(
            f"plan: lengths are counted in mini's tokens, which are more: {error.message}; --tokens N gives one",
            file=sys.stderr,
        )
        return dataclasses.replace(config, tokenizer=str(tokenizer_folder("mini")))
    return config


def _limit(options: PlanArguments) -> float:
    """Bytes that each device offers."""
    if options.device_memory is None:
        return device_of(options.device_kind).memory_bytes
    return bytes_of(options.device_memory)


def _run_settings(options: PlanArguments) -> dict[str, Any]:
    """Those that `torso train` has too."""
    names = {field.name for field in dataclasses.fields(RunConfig)}
    return {n: v for n, v in vars(options).items() if n in names and not (n == "adapter" and v == "none")}


def _words(options: PlanArguments) -> list[str]:
    """The flags of `torso train` that say the same, without those that are at their defaults."""
    defaults, words = vars(RunConfig()), []
    for name, value in vars(options).items():
        if name not in defaults or (value == defaults[name] and name not in ("model", "data", "adapter")):
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", shlex.join(map(str, values))]
    return words


def text(setting: Setting, found: Mapping[Strategy, Prediction], advice: Recommendation, typed: Sequence[str]) -> str:
    """For people: one line a strategy, what to take, what to type."""
    head = f"{'strategy':9s} {'memory':>9s} {'step':>9s} {'tokens/s':>9s} {'sent':>9s}  fits"
    lines = [_about(setting), "", head, *(_line(setting, found[name]) for name in STRATEGIES), ""]
    lines += [f"{name:9s} {advice.reasons[name]}" for name in STRATEGIES]
    if advice.strategy is None:
        return "\n".join([*lines, "", "Nothing fits: lower --micro-batch-size, or take an adapter or more devices."])
    return "\n".join([*lines, "", f"Recommended: {advice.strategy}", *(f"  {command}" for command in typed)])


def _about(setting: Setting) -> str:
    what = (
        "all parameters" if setting.adapter is None else f"{setting.adapter.kind} of rank {setting.adapter.lora_rank}"
    )
    limit = "" if setting.memory_limit == float("inf") else f" of {size(setting.memory_limit)}"
    batch = (
        f"{setting.global_batch_size} sequences of {setting.tokens} tokens a step, {setting.micro_batch_size} at once"
    )
    return f"{setting.devices} × {setting.device.name}{limit}, {setting.link.name}; {what}; {batch}, {setting.dtype}"


def _line(setting: Setting, p: Prediction) -> str:
    if p.seconds is None:
        return f"{p.strategy:9s} {'-':>9s} {'-':>9s} {'-':>9s} {'-':>9s}  n/a"
    rate = setting.global_batch_size * setting.tokens / p.step_seconds
    step = f"{p.step_seconds * 1e3:.0f} ms" if p.step_seconds < 1.0 else duration(p.step_seconds)
    sent = size(p.seconds.sent_bytes) if p.seconds.sent_bytes else "-"
    fits = "yes" if p.fits else "no"
    return f"{p.strategy:9s} {size(p.memory_bytes):>9s} {step:>9s} {rate:>9,.0f} {sent:>9s}  {fits}"


def document(
    setting: Setting, found: Mapping[Strategy, Prediction], advice: Recommendation, typed: Sequence[str]
) -> dict[str, Any]:
    """For programs."""
    return {
        "setting": dataclasses.asdict(setting),
        "strategies": {name: _figures(found[name], advice.reasons[name]) for name in STRATEGIES},
        "recommended": advice.strategy,
        "commands": list(typed),
    }


def _figures(p: Prediction, reason: str) -> dict[str, Any]:
    figures: dict[str, Any] = {"applicable": not p.refusal, "fits": p.fits, "reason": reason}
    if p.seconds is None:
        return figures
    return figures | {
        "memory_bytes": p.memory_bytes,
        "step_seconds": p.step_seconds,
        "memory": {party: dataclasses.asdict(memory) for party, memory in p.parties.items()},
        "seconds": dataclasses.asdict(p.seconds),
    }
