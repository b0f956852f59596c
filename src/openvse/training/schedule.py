"""The learning-rate schedule: phases of a recipe, linear warm-up, and the learning rate at each step.

A schedule is known before training begins. The reduction of the rate when validation stagnates is in ``plateau.py``;
its factor multiplies the rate of the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from openvse.specs import OptimizerSpec, PhaseSpec


@dataclass(frozen=True)
class Schedule:
    """The phase of each epoch, and the learning rate of each step.

    Args:
        optimizer: the settings of the optimiser, with the base learning rate.
        phases: the phases in their order.
        steps_per_epoch: the number of batches in an epoch.
    """

    optimizer: OptimizerSpec
    phases: Sequence[PhaseSpec]
    steps_per_epoch: int

    @property
    def num_epochs(self) -> int:
        """The number of epochs of all phases."""
        return sum(phase.epochs for phase in self.phases)

    def phase_index(self, epoch: int) -> int:
        """Return the position of the phase that epoch 0, 1, ... belongs to."""
        return self._locate(epoch)[0]

    def learning_rate(self, epoch: int, step: int) -> float:
        """Return the base learning rate of a step, which is counted within the epoch.

        A warm-up of ``w`` epochs rises linearly and reaches the full rate with the last step of those epochs.
        """
        index, first_epoch = self._locate(epoch)
        phase = self.phases[index]
        rate = phase.learning_rate or self.optimizer.learning_rate
        warmup_steps = phase.warmup_epochs * self.steps_per_epoch
        done = (epoch - first_epoch) * self.steps_per_epoch + step + 1
        return rate * min(1.0, done / warmup_steps) if warmup_steps else rate

    def apply(
        self, optimizer: torch.optim.Optimizer, epoch: int, step: int, *, rate_factor: float = 1.0
    ) -> float:
        """Set the learning rate of each group to ``rate_factor`` times that of the phase; return the base rate."""
        rate = rate_factor * self.learning_rate(epoch, step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["multiplier"]
        return rate

    def _locate(self, epoch: int) -> tuple[int, int]:
        """Return the phase of an epoch, and the first epoch of that phase."""
        first = 0
        for index, phase in enumerate(self.phases):
            if epoch < first + phase.epochs:
                return index, first
            first += phase.epochs
        raise IndexError(f"epoch {epoch} of a schedule of {first}")
