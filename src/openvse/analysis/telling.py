"""A watcher of several trainings of one analysis."""

from __future__ import annotations

from openvse.training.records import EpochReport, StepReport, Watcher


class TellOnce:
    """A watcher that passes on what another one is told, but each note and each warning only once.

    Trainings on the same data say the same about it. ``begin`` says which training comes next.

    Args:
        watcher: the other watcher; None hears nothing.
    """

    def __init__(self, watcher: Watcher | None) -> None:
        self._watcher = watcher
        self._told: set[str] = set()

    def begin(self, message: str) -> None:
        """Pass on a message that says which training begins or goes on, whether or not it was told before."""
        if self._watcher is not None:
            self._watcher.note(message)

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Pass it on."""
        if self._watcher is not None:
            self._watcher.started(total_steps=total_steps, done_steps=done_steps, num_epochs=num_epochs)

    def step(self, report: StepReport) -> None:
        """Pass it on."""
        if self._watcher is not None:
            self._watcher.step(report)

    def epoch(self, report: EpochReport) -> None:
        """Pass it on."""
        if self._watcher is not None:
            self._watcher.epoch(report)

    def warn(self, message: str) -> None:
        """Pass a warning on, if it is new."""
        if self._watcher is not None and self._new(message):
            self._watcher.warn(message)

    def note(self, message: str) -> None:
        """Pass a note on, if it is new."""
        if self._watcher is not None and self._new(message):
            self._watcher.note(message)

    def _new(self, message: str) -> bool:
        new = message not in self._told
        self._told.add(message)
        return new
