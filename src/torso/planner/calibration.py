"""Measured pieces of a step, kept in a file, and what follows from them for other batches and models."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torso.errors import ConfigError
from torso.planner.costs import Costs, Line, over
from torso.planner.counts import block_backward_flops, block_forward_flops, loss_flops
from torso.planner.setting import Setting, Strategy

VERSION = 2


class OutdatedCalibrationError(ConfigError):
    """The file is another version's."""


OTHER_FILE = "Remove it, or name another file, and measure with --calibrate."
_LINES = tuple(one.name for one in dataclasses.fields(Costs) if one.type == "Line")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was measured for one workload while so many processes did the same."""

    processes: int
    threads: int
    """Of each process."""
    dtype: str
    full: bool
    """All parameters are trained, not adapters."""
    width: int
    positions: int
    """Of a micro-batch."""
    forward_flops: float
    """Of a block; measured seconds are scaled by the ratio of such counts."""
    backward_flops: float
    loss_flops: float
    several: bool
    """A rank had more than one micro-batch in a step."""
    costs: Costs
    overheads: dict[str, float] = field(default_factory=dict)
    """Bytes of a process besides imports and tensors, by strategy, or by a split's party."""

    @classmethod
    def of(
        cls, setting: Setting, processes: int, threads: int, costs: Costs, overheads: dict[str, float] | None = None
    ) -> Entry:
        """Costs measured for this setting."""
        return cls(
            processes=processes,
            threads=threads,
            dtype=setting.dtype,
            full=setting.adapter is None,
            width=setting.shape.n_embd,
            positions=setting.positions,
            forward_flops=block_forward_flops(setting),
            backward_flops=block_backward_flops(setting),
            loss_flops=loss_flops(setting),
            several=setting.share(processes) > 1,
            costs=costs,
            overheads=overheads or {},
        )

    def distance(self, setting: Setting) -> float:
        """How far the setting is from what was measured; width counts more than the size of a micro-batch."""
        width = abs(math.log(self.width / setting.shape.n_embd))
        # the count tells kinds and ranks of adapters apart
        flops = abs(math.log(self.backward_flops / block_backward_flops(setting)))
        several = 0.0 if self.several == (setting.share(self.processes) > 1) else 0.1
        return 4.0 * width + abs(math.log(self.positions / setting.positions)) + flops + several

    def scaled(self, setting: Setting) -> Costs:
        """The same pieces for another size of the work, by its FLOPs."""
        return dataclasses.replace(
            self.costs,
            block_forward=self.costs.block_forward * block_forward_flops(setting) / self.forward_flops,
            block_backward=self.costs.block_backward * block_backward_flops(setting) / self.backward_flops,
            loss=self.costs.loss * loss_flops(setting) / self.loss_flops,
        )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Of one machine."""

    machine: dict[str, str]
    import_bytes: float
    """Resident memory of a training process after its imports."""
    entries: tuple[Entry, ...] = ()

    def costs(self, setting: Setting, strategy: Strategy) -> Costs:
        """From the nearest entry with the strategy's number of processes; raises ConfigError where there is none."""
        return over(self._nearest(setting, strategy).scaled(setting), setting.link)

    def held(self, setting: Setting, strategy: Strategy) -> dict[str, float]:
        """Bytes of each party's process besides its tensors, of the parties that were tried."""
        return {name: self.import_bytes + size for name, size in self._nearest(setting, strategy).overheads.items()}

    def overheads(self, processes: int, full: bool, several: bool) -> dict[str, float] | None:
        """Known already, whatever the workload."""
        wanted = (processes, full, several)
        known = (e.overheads for e in self.entries if (e.processes, e.full, e.several) == wanted and e.overheads)
        return next(known, None)

    def _nearest(self, setting: Setting, strategy: Strategy) -> Entry:
        processes, threads = 1 if strategy == "single" else setting.devices, setting.threads(strategy)
        full = setting.adapter is None
        # where all weights are trained no wire is timed, and other things are held
        wanted = (processes, threads, setting.dtype, full)
        fitting = [e for e in self.entries if (e.processes, e.threads, e.dtype, e.full) == wanted]
        if not fitting:
            what = "all weights trained" if full else "adapters"
            text = f"the calibration has nothing of {processes} × {threads} threads in {setting.dtype} with {what}"
            raise ConfigError(text, "Measure anew with --calibrate.")
        return min(fitting, key=lambda entry: entry.distance(setting))

    def with_entries(self, entries: Sequence[Entry]) -> Calibration:
        """New ones in place of old ones of the same workload."""
        new = {_key(entry): entry for entry in (*self.entries, *entries)}
        return dataclasses.replace(self, entries=tuple(new.values()))

    def to_json(self) -> str:
        """The file's content."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1) + "\n"


def _key(entry: Entry) -> tuple[Any, ...]:
    fields = dataclasses.asdict(entry)
    return tuple(value for name, value in fields.items() if name not in ("costs", "overheads"))


def read_calibration(path: Path) -> Calibration:
    """Raises ConfigError when the file is missing or broken, its OutdatedCalibrationError for another version's."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        what = f"this machine has not been measured yet (there is no {path})"
        what = what if isinstance(error, FileNotFoundError) else f"{path} cannot be read: {error.strerror}"
        raise ConfigError(what, "Give --calibrate, or for GPUs --device-kind and --link.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", OTHER_FILE) from None
    try:
        if found["version"] != VERSION:
            what = f"{path} is of version {found['version']}, not {VERSION}"
            raise OutdatedCalibrationError(what, "Measure anew with --calibrate.")
        entries = tuple(Entry(**fields | {"costs": costs_of(fields["costs"])}) for fields in found["entries"])
        return Calibration(
            machine=dict(found["machine"]),
            import_bytes=float(found["import_bytes"]),
            entries=entries,
        )
    except ConfigError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} is no calibration: {error!r}", OTHER_FILE) from None


def costs_of(fields: dict[str, Any]) -> Costs:
    """From JSON."""
    built: dict[str, Any] = {name: Line(**value) if name in _LINES else value for name, value in fields.items()}
    return Costs(**built)
