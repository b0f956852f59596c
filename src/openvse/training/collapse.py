"""Collapse: the model no longer distinguishes items. Its definition, and how a run notices it.

**Definition.** A collapsed model gives every item the same output. In retrieval all embeddings are equal. All scores
are then equal too, the gradients of a positive and of its negatives cancel, and the model stops learning. Mining the
hardest negatives from the first step on can cause collapse (hard-negative collapse). VSE-infinity takes all negatives
in its first epoch (appendix A.1). In question answering every question gets the same answers, each as often as right.

**How a run notices it.** The loss of a collapsed model can be computed and is not zero: a hinge on the hardest
negative, summed over B pairs and both directions, is ``2 * B * margin`` (51.2 for 128 pairs and a margin of 0.2). A
task states this value for each batch as ``Step.at_collapse``. In retrieval it is ``Objective.at_collapse``, the
objective evaluated on equal embeddings. A ``CollapseDetector`` compares the loss with this value, and the trainer
prints its warning, with the advice of the task. Training continues, because a run may recover by itself.
"""

from __future__ import annotations

from collections import deque

EQUAL_EMBEDDINGS = (
    "all embeddings are becoming equal (hard-negative collapse). Begin with about three epochs on all negatives "
    "(training.phases.0: {epochs: 3, objective: {ranking.miner: all}}), lower optimizer.learning_rate, "
    "or warm it up longer"
)
"""The meaning of collapse in retrieval, and advice."""

EQUAL_ANSWERS = (
    "every question gets the same answers, as often as they are right. Lower optimizer.learning_rate, or "
    "warm it up (training.phases.0.warmup_epochs)"
)
"""The meaning of collapse in question answering, and advice."""

# One step in so many is compared, because the loss at collapse costs time. A whole window in turn must look collapsed.
EVERY, WINDOW = 5, 100
TOLERANCE = 0.02  # the largest relative distance from the loss at collapse


class CollapseDetector:
    """Notices a loss that stays at the value it has at collapse."""

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self._near: deque[bool] = deque(maxlen=WINDOW)

    def is_due(self, step: int) -> bool:
        """Return whether the loss of a step must be compared."""
        return step % EVERY == 0

    def update(self, loss: float, collapsed: float) -> str | None:
        """Compare a loss with its value at collapse. Return a warning each time a whole window looks collapsed."""
        self._near.append(abs(loss - collapsed) <= TOLERANCE * abs(collapsed))
        if len(self._near) < WINDOW or not all(self._near):
            return None
        self._near.clear()
        return f"the loss has been within {TOLERANCE:.0%} of {collapsed:.4g} for {WINDOW * EVERY} steps: {self.advice}"
