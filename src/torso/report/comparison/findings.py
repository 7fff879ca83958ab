"""What a comparison shows, in sentences made from its numbers, with the paper's beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torso.report.comparison.paper import SET_UP, TABLE_1, ratio_to_single
from torso.report.comparison.tables import MEGABYTE
from torso.report.comparison.trials import DONE, FAILED, TOLERANCE, Comparison, Group, Result
from torso.report.units import duration, number

BUSY = 0.05
"""Other programs that used more than this share of the cores during a trial may have slowed it."""


def findings(comparison: Comparison) -> list[str]:
    """One paragraph a group, after one on the whole; each is a few sentences."""
    groups = [group for group in comparison.groups if group.done]
    paragraphs = [" ".join(_set_up(comparison))]
    paragraphs += [" ".join(_group(group, named=len(groups) > 1)) for group in groups]
    if len(groups) > 1:
        paragraphs.append(" ".join(_growth(comparison)))
    return [text for text in (*paragraphs, " ".join(_paper(groups)), *notes(comparison)) if text]


def _set_up(comparison: Comparison) -> list[str]:
    settings, machine = comparison.settings, comparison.machine
    adapter = settings.get("adapter")
    what = "all weights" if adapter == "none" else f"a {adapter} adapter of rank {settings.get('lora_rank')}"
    batch = f"{settings['global_batch_size']} sequences a step in micro-batches of {settings['micro_batch_size']}"
    threads = _count(int(machine["threads"]), "intra-op thread")
    text = (
        f"{_count(len(comparison.strategies), 'strategy', 'strategies')} trained {what} of {_and(comparison.models)} "
        f"for {_count(int(settings['epochs']), 'epoch')} on {settings['data']}, {batch}, {settings['dtype']}, with "
        f"{threads} in every process."
    )
    return [text, agreement(comparison)]


def agreement(comparison: Comparison) -> str:
    """The check of the losses, in a sentence."""
    worst = [(d, epoch) for model in comparison.models for epoch, d in enumerate(comparison.differences(model), 1)]
    if not worst:
        return "The losses cannot be compared: fewer than two trials of a model are done."
    difference, epoch = max(worst)
    text = f"the largest relative difference between two of them is {difference:.1e}, at epoch {epoch}"
    if comparison.agrees is None:
        return f"Losses: {text}; no agreement is asked for outside fp32 without dropout."
    if comparison.agrees:
        return f"The losses agree: {text} (limit {TOLERANCE:.0e})."
    return f"The losses do NOT agree: {text}, above the limit of {TOLERANCE:.0e}."


def _group(group: Group, *, named: bool) -> list[str]:
    done = group.done
    where = f"{group.model} with {_count(group.num_processes, 'process', 'processes')}: " if named else ""
    if len(done) == 1:
        return [f"{where}only {done[0].trial.strategy} has figures."]
    fastest, slowest = _ends(done, lambda r: -r.real_tokens_per_second)
    rate = fastest.real_tokens_per_second
    times = rate / slowest.real_tokens_per_second
    sentences = [
        f"{where}{fastest.trial.strategy} was fastest, {number(rate, 0)} tokens/s, {number(times, 2)} times "
        f"{slowest.trial.strategy}, the slowest."
    ]
    sentences += _against_single(group)
    sentences += _memory(done)
    return [*sentences, *_traffic(done)]


def _against_single(group: Group) -> list[str]:
    single = group.of("single")
    others = [r for r in group.done if r is not single]
    if single is None or not single.seconds:
        return []
    parts = [f"{r.trial.strategy} {number(r.seconds / single.seconds, 2)}" for r in others]
    return [f"Training time as a multiple of single's: {', '.join(parts)}."]


def _memory(done: Sequence[Result]) -> list[str]:
    least, most = _ends(done, _rank_memory)
    smallest, largest = _ends(done, _whole_memory)
    low, high = (f"{r.trial.strategy} {_megabytes(_rank_memory(r))}" for r in (least, most))
    few, many = (f"{r.trial.strategy} {_megabytes(_whole_memory(r))}" for r in (smallest, largest))
    return [
        f"Peak memory of the largest rank: least {low}, most {high}; of all ranks together: least {few}, most {many}."
    ]


def _traffic(done: Sequence[Result]) -> list[str]:
    sending = sorted((r for r in done if r.sent_a_step), key=lambda r: r.sent_a_step)
    if not sending:
        return []
    parts = [f"{r.trial.strategy} {number(r.sent_a_step / MEGABYTE, 3)} MB" for r in sending]
    return [f"Sent by a rank in a step: {', '.join(parts)}."]


def _growth(comparison: Comparison) -> list[str]:
    """From the first size or model to the last."""
    sentences = []
    sizes, models = list(comparison.world_sizes), list(comparison.models)
    for strategy in comparison.strategies:
        own = [r for r in comparison.results.values() if r.done and r.trial.strategy == strategy]
        for model in models if len(sizes) > 1 and strategy != "single" else []:
            at = {r.trial.num_processes: r for r in own if r.trial.model == model}
            if sizes[0] in at and sizes[-1] in at:
                text = f"{strategy} on {model}, from {sizes[0]} to {sizes[-1]} processes:"
                sentences.append(f"{text} {_times(at[sizes[0]], at[sizes[-1]])}.")
        first = next((r for r in own if r.trial.model == models[0]), None)
        last = next((r for r in own if r.trial.model == models[-1]), None)
        if first and last and len(models) > 1 and first.trial.num_processes == last.trial.num_processes:
            sentences.append(f"{strategy}, from {models[0]} to {models[-1]}: {_times(first, last)}.")
    return sentences


def _times(first: Result, last: Result) -> str:
    seconds = last.seconds / first.seconds if first.seconds else 0.0
    memory = _rank_memory(last) / max(1.0, _rank_memory(first))
    return f"{number(seconds, 2)} times the time, {number(memory, 2)} times the largest rank's memory"


def _paper(groups: Sequence[Group]) -> list[str]:
    """Ratios can be compared across machines; seconds cannot. It had two processes: so has ours, where there is one."""
    group = next((group for group in groups if group.num_processes == 2), groups[-1] if groups else None)
    single = group.of("single") if group else None
    if group is None or single is None or not single.seconds:
        return []
    here = "here" if len(groups) == 1 else f"here with {group.model} on {group.num_processes}"
    parts = []
    for strategy in (name for name in TABLE_1 if name != "single"):
        ours = group.of(strategy)
        if ours is not None:
            time, memory = ours.seconds / single.seconds, _rank_memory(ours) / _rank_memory(single)
            parts.append(
                f"{strategy} took {number(ratio_to_single(strategy, 'seconds') or 0.0, 2)} times single's time and "
                f"{number(ratio_to_single(strategy, 'memory_megabytes') or 0.0, 2)} times its memory ({here} "
                f"{number(time, 2)} and {number(memory, 2)})"
            )
    if not parts:
        return []
    losses = ", ".join(f"{name} {number(column.loss, 3)}" for name, column in TABLE_1.items())
    return [
        f"In the paper ({SET_UP}) {'; '.join(parts)}.",
        f"Its average losses differ between strategies ({losses}) because its global batch was not held constant; "
        "here it is, so that a loss says nothing about a strategy.",
    ]


def notes(comparison: Comparison) -> list[str]:
    """What must be known to read the figures rightly."""
    texts = []
    if not comparison.on_gpu:
        texts.append(
            "These figures come from CPU processes that exchange data through gloo on one machine: they must not be "
            "read as figures of GPUs. Memory is resident memory, which holds Python and torch too."
        )
        if comparison.machine["threads"] != comparison.machine["cores"]:
            texts.append(_cores(comparison))
    warm_up = comparison.warm_up_steps
    if warm_up:
        texts.append(f"Times and throughput leave out the first {_count(warm_up, 'step')} of each run, the warm-up.")
    texts += _one_copy(comparison)
    texts += _busy(comparison)
    for result in comparison.results.values():
        if not result.done:
            state = result.state if result.state != DONE else FAILED
            reason = f": {result.reason}" if result.reason else ""
            texts.append(f"{result.trial.name} is {state}{reason}")
    return texts


def _cores(comparison: Comparison) -> str:
    machine = comparison.machine
    return (
        f"Every process computes with {_count(int(machine['threads']), 'thread')} on a machine of "
        f"{_count(int(machine['cores']), 'core')}, whatever the strategy: single leaves the other cores idle, and what "
        "two processes gain over it is the other core as much as the strategy."
    )


def _one_copy(comparison: Comparison) -> list[str]:
    """Few ranks leave hsdp no choice."""
    same = [r.trial.name for r in comparison.results.values() if r.done and r.num_copies == 1]
    if not same:
        return []
    return [f"{_and(same)}: one copy of the model, shared by all ranks, which is what fsdp does; two need four ranks."]


def _busy(comparison: Comparison) -> list[str]:
    cores = int(comparison.machine["cores"])
    busy = [r for r in comparison.results.values() if r.done and r.others_cores > BUSY * cores]
    if not busy:
        return []
    used = ", ".join(f"{r.trial.name} {number(r.others_cores, 2)}" for r in busy)
    return [
        f"Other programs ran beside trials (of {_count(cores, 'core')} they used: {used}): "
        "those trials' times are too long by an unknown amount."
    ]


def describe_time(comparison: Comparison) -> str:
    """How long all of it took."""
    return duration(sum(result.wall_seconds for result in comparison.results.values()))


def _rank_memory(result: Result) -> float:
    return result.largest(lambda e: e.memory_bytes)


def _whole_memory(result: Result) -> float:
    return result.largest(lambda e: e.memory_sum_bytes)


def _megabytes(num_bytes: float) -> str:
    """One unit throughout, so that figures can be compared at a glance."""
    return f"{number(num_bytes / MEGABYTE, 0)} MB"


def _ends(results: Sequence[Result], of: Callable[[Result], float]) -> tuple[Result, Result]:
    ordered = sorted(results, key=of)
    return ordered[0], ordered[-1]


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _and(names: Iterable[str]) -> str:
    words = list(names)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
