"""The learning rate of each step, and the changes that a phase of a recipe makes.

The schedule is known before training begins: phases and linear warm-up. If validation stagnates, the factor of the
plateau multiplies its rate. Users are told what a phase changes, so that a jump of the loss does not surprise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from openvse.specs import OptimizerSpec, PhaseSpec, PlateauSpec, RunRecipe, apply_override


@dataclass(frozen=True)
class Schedule:
    """The phase of each epoch, and the learning rate of each step."""

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


def same_past(before: Sequence[PhaseSpec], now: Sequence[PhaseSpec], epochs: int) -> bool:
    """Return whether two schedules treat the first epochs alike, so that a run may go on from the one to the other."""

    def past(phases: Sequence[PhaseSpec]) -> list[tuple[PhaseSpec, int]]:
        every = [(phase.model_copy(update={"epochs": 1}), n) for phase in phases for n in range(phase.epochs)]
        return every[:epochs]

    return past(before) == past(now)


@dataclass(frozen=True)
class Plateau:
    """The number of validations without progress, and the factor of the learning rate that follows from them.

    ``best`` is the largest value so far; with ``mode: min``, minus the smallest value.
    """

    best: float = -math.inf
    waited: int = 0
    rate_factor: float = 1.0

    def after(self, value: float, spec: PlateauSpec) -> Plateau:
        """Return the state after one more validation."""
        if spec.mode == "min":
            value, bar = -value, self.best * (1.0 - spec.threshold)
        else:
            bar = self.best * (1.0 + spec.threshold)
        if value > bar:
            return replace(self, best=value, waited=0)
        if self.waited + 1 < spec.patience:
            return replace(self, waited=self.waited + 1)
        return replace(self, waited=0, rate_factor=self.rate_factor * spec.factor)


OBJECTIVE = "objective."
"""The prefix of those changes that give the loss another scale."""


def phase_changes(recipe: RunRecipe, index: int) -> dict[str, tuple[Any, Any]]:
    """Return the changes of a phase from the one before: the old and the new value of each changed key."""
    before, after = (_settings(recipe, each) for each in (index - 1, index))
    return {
        key: (before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }


def announcement(recipe: RunRecipe, index: int) -> str:
    """Return the line that announces a phase: its first epoch, and its changes."""
    phases = recipe.training.phases
    first = 1 + sum(phase.epochs for phase in phases[:index])
    changes = phase_changes(recipe, index)
    listed = [f"{key.removeprefix(OBJECTIVE)} is {new} (was {old})" for key, (old, new) in changes.items()]
    if phases[index].warmup_epochs:
        listed.append(f"the learning rate warms up over {phases[index].warmup_epochs:g} epoch(s)")
    line = f"phase {index + 1} of {len(phases)} begins with epoch {first}: {', '.join(listed) or 'no change'}"
    if any(key.startswith(OBJECTIVE) for key in changes):
        line += (
            "; the loss has another scale from here on: compare validation, not the loss, with earlier epochs"
        )
    return line


def _settings(recipe: RunRecipe, index: int) -> dict[str, Any]:
    """Return the settings of a phase by their dotted paths."""
    phase = recipe.training.phases[index]
    tree: dict[str, Any] = {"objective": recipe.to_dict().get("objective", {})}
    for path, value in phase.objective.items():
        tree = apply_override(tree, f"{OBJECTIVE}{path}", value)
    rate = phase.learning_rate or recipe.optimizer.learning_rate
    return {
        **dict(_leaves(tree["objective"], OBJECTIVE.rstrip("."))),
        "learning_rate": rate,
        "frozen": ", ".join(phase.frozen) or "nothing",
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a tree by their paths; the name of a part has the path of the part itself."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, below in value.items():
        yield from _leaves(below, path if key == "name" else f"{path}.{key}")
