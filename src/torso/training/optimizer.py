"""AdamW over named tensors, or over a rank's shares of them: one parameter at a time, nothing fused."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from torso.training.config import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Moments of each parameter, and the number of updates made."""

    def __init__(self, parameters: Mapping[str, Tensor], config: OptimizerConfig) -> None:
        self._parameters, self._config = dict(parameters), config
        self.moments = {
            moment: {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
            for moment in MOMENTS
        }
        self.num_updates = 0

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor], divisor: float, clip_factor: float, learning_rate: float) -> None:
        """One update with the gradients, divided and clipped."""
        self.num_updates += 1
        for name, parameter in self._parameters.items():
            gradient = gradients[name].to(parameter.device)
            self._step(name, parameter, gradient / divisor * clip_factor, learning_rate)

    def _step(self, name: str, parameter: Tensor, gradient: Tensor, learning_rate: float) -> None:
        adamw(
            [parameter],
            [gradient],
            [self.moments["exp_avg"][name]],
            [self.moments["exp_avg_sq"][name]],
            [],
            # adamw counts the step up itself before using it
            [torch.tensor(float(self.num_updates - 1))],
            foreach=False,
            amsgrad=False,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            lr=learning_rate,
            weight_decay=self._config.weight_decay,
            eps=self._config.eps,
            maximize=False,
        )
