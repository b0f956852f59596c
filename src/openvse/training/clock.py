"""The clock of an epoch: training time, speed, and when a checkpoint is due."""

from __future__ import annotations

import time


class EpochClock:
    """Measures the steps of one epoch; validation and the time between two sessions do not count.

    Args:
        seconds: the training time before the clock started, in seconds.
        step: the number of batches of the epoch that were done when the clock started.
    """

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds_before, self._reported_step = seconds, step
        self._start = self._now = self._report = self._checkpoint = time.monotonic()

    def tick(self) -> float:
        """Read the time at the end of a step, and return the seconds of training so far."""
        self._now = time.monotonic()
        return self._seconds_before + self._now - self._start

    def steps_per_s(self, step: int) -> float:
        """Return the steps per second since the last call; ``step`` batches of the epoch are done."""
        speed = (step - self._reported_step) / max(self._now - self._report, 1e-9)
        self._report, self._reported_step = self._now, step
        return speed

    def checkpoint_is_due(self, every_s: float) -> bool:
        """Return whether the last checkpoint, or the start, is at least ``every_s`` seconds ago."""
        return self._now - self._checkpoint >= every_s

    def checkpoint_written(self) -> None:
        """Start to measure the time to the next checkpoint."""
        self._checkpoint = time.monotonic()
