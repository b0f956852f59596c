"""Early diagnosis of a run that learns nothing."""

from __future__ import annotations

from collections import deque


class CollapseDetector:
    """Notices a loss that stays at the value it has when all embeddings are equal (2 * B * margin for a hinge).

    Args:
        advice: what it means, and what to do.
        window: consecutive steps that must look collapsed.
        tolerance: relative distance from the collapsed value that still counts.
    """

    def __init__(self, advice: str, window: int = 100, tolerance: float = 0.02) -> None:
        self.advice = advice
        self.tolerance = tolerance
        self._near: deque[bool] = deque(maxlen=window)

    def update(self, loss: float, collapsed: float) -> str | None:
        """Take one step's loss and its collapsed value; return a warning each time a whole window looks collapsed."""
        self._near.append(abs(loss - collapsed) <= self.tolerance * abs(collapsed))
        if len(self._near) < (self._near.maxlen or 0) or not all(self._near):
            return None
        steps = len(self._near)
        self._near.clear()
        return f"the loss has been within {self.tolerance:.0%} of {collapsed:.4g} for {steps} steps: {self.advice}"
