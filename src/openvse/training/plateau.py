"""Reduction of the learning rate on a plateau: if validation stagnates, the rates are multiplied by a factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from openvse.specs import PlateauSpec


@dataclass(frozen=True)
class Plateau:
    """The number of validations without progress, and the factor of the learning rate that follows from them.

    Attributes:
        best: the largest value so far; with ``mode: min``, minus the smallest value.
        waited: the number of consecutive validations that were not better.
        rate_factor: the factor by which the learning rates of the phases are multiplied.
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
