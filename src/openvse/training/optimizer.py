"""The optimiser of a recipe, and the learning rate and frozen parts of each of its phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from openvse.errors import RecipeError, nearest
from openvse.specs import OptimizerSpec, PhaseSpec


def build_optimizer(
    spec: OptimizerSpec, parameters: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """Group the parameters by their learning-rate multiplier.

    Each group carries ``multiplier``; a Schedule sets its learning rate.

    Raises:
        RecipeError: a multiplier names no parameter.
    """
    check_prefixes(spec.multipliers, [name for name, _ in parameters], "optimizer.multipliers")
    by_length = sorted(spec.multipliers, key=len, reverse=True)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        prefix = next((p for p in by_length if has_prefix(name, p)), None)
        groups.setdefault(1.0 if prefix is None else spec.multipliers[prefix], []).append(parameter)
    kind: type[torch.optim.AdamW | torch.optim.Adam] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[
        spec.name
    ]
    return kind(
        [{"params": members, "multiplier": multiplier} for multiplier, members in groups.items()],
        lr=spec.learning_rate,
        weight_decay=spec.weight_decay,
        amsgrad=spec.amsgrad,
    )


def freeze(parameters: Iterable[tuple[str, nn.Parameter]], prefixes: Sequence[str]) -> None:
    """Let a parameter train unless a prefix names it."""
    for name, parameter in parameters:
        parameter.requires_grad_(not any(has_prefix(name, prefix) for prefix in prefixes))


def has_prefix(name: str, prefix: str) -> bool:
    """Return whether a dotted prefix covers a parameter: ``image.enc`` does not cover ``image.encoder.fc``."""
    return name == prefix or name.startswith(prefix.rstrip(".") + ".")


def check_prefixes(prefixes: Iterable[str], names: Sequence[str], where: str) -> None:
    """Raise RecipeError for a prefix that covers no parameter: a misspelt one would silently do nothing."""
    modules = sorted({name.rsplit(".", cut)[0] for name in names for cut in range(name.count(".") + 1)})
    for prefix in prefixes:
        if not any(has_prefix(name, prefix) for name in names):
            raise RecipeError(
                f"recipe: {where}: {prefix!r} names no trainable parameter{nearest(prefix, modules)}"
            )


@dataclass(frozen=True)
class Schedule:
    """Which phase an epoch belongs to, and the learning rate at each step.

    Args:
        optimizer: gives the base learning rate.
        phases: run in order.
        steps_per_epoch: batches an epoch.
    """

    optimizer: OptimizerSpec
    phases: Sequence[PhaseSpec]
    steps_per_epoch: int

    @property
    def num_epochs(self) -> int:
        """Epochs over all phases."""
        return sum(phase.epochs for phase in self.phases)

    def phase_index(self, epoch: int) -> int:
        """Return the position of the phase that epoch 0, 1, ... belongs to."""
        return self._locate(epoch)[0]

    def learning_rate(self, epoch: int, step: int) -> float:
        """Return the base learning rate of a step (counted within the epoch).

        A warm-up of ``w`` epochs climbs linearly and reaches the full rate with the last step of those epochs.
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
        """Set each group's learning rate, ``rate_factor`` times the phase's, and return the base rate."""
        rate = rate_factor * self.learning_rate(epoch, step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["multiplier"]
        return rate

    def _locate(self, epoch: int) -> tuple[int, int]:
        """Return the phase of an epoch and the phase's first epoch."""
        first = 0
        for index, phase in enumerate(self.phases):
            if epoch < first + phase.epochs:
                return index, first
            first += phase.epochs
        raise IndexError(f"epoch {epoch} of a schedule of {first}")
