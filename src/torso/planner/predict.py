"""`predict`: what each strategy would need, and which one to take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torso.planner.costs import Costs, nominal
from torso.planner.hardware import CONTEXT_BYTES
from torso.planner.memory import Memory, memory
from torso.planner.setting import STRATEGIES, Setting, Strategy, refusal
from torso.planner.times import Seconds, step_seconds

CostsOf = Callable[[Setting, Strategy], Costs]
"""Pieces of a step for a strategy: on a CPU they depend on how many processes work beside each other."""
HeldOf = Callable[[Setting, Strategy], Mapping[str, float]]
"""Bytes of a device besides its tensors, by party."""
TYPICAL_HELD = 0.35e9
"""Resident memory of a Torso process on a CPU besides its tensors, where nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Of one strategy."""

    strategy: Strategy
    refusal: str = ""
    """Why it cannot be done; then there are no figures."""
    parties: Mapping[str, Memory] = field(default_factory=dict)
    """Memory by party: the strategy's own name, or a split's `client` and `worker`."""
    seconds: Seconds | None = None
    """Of a step; None where it cannot be done."""
    memory_limit: float = math.inf

    @property
    def memory_bytes(self) -> float:
        """Peak of the fullest device."""
        return max((party.total for party in self.parties.values()), default=math.nan)

    @property
    def step_memory_bytes(self) -> float:
        """The same within steps, which is what runs record."""
        return max((party.held + party.step for party in self.parties.values()), default=math.nan)

    @property
    def step_seconds(self) -> float:
        """Not a number where it cannot be done."""
        return math.nan if self.seconds is None else self.seconds.total

    @property
    def fits(self) -> bool:
        """Whether each device's peak is within its limit."""
        return not self.refusal and self.memory_bytes <= self.memory_limit


def predict(setting: Setting, costs: CostsOf | None = None, held: HeldOf | None = None) -> dict[Strategy, Prediction]:
    """Of every strategy. Both come from a calibration, or are nominal. Raises ConfigError where nothing is known."""
    find = costs or (lambda one, strategy: nominal(one))
    return {strategy: _predict(setting, strategy, find, held or (lambda one, strategy: {})) for strategy in STRATEGIES}


def _predict(setting: Setting, strategy: Strategy, costs: CostsOf, held: HeldOf) -> Prediction:
    reason = refusal(setting, strategy)
    if reason:
        return Prediction(strategy=strategy, refusal=reason)
    besides = held(setting, strategy)
    typical = TYPICAL_HELD if setting.device.is_cpu else CONTEXT_BYTES
    parties = memory(setting.at_its_longest, strategy)
    return Prediction(
        strategy=strategy,
        parties={n: dataclasses.replace(m, held=besides.get(n, typical)) for n, m in parties.items()},
        seconds=step_seconds(setting, strategy, costs(setting, strategy)),
        memory_limit=setting.memory_limit,
    )
