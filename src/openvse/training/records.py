"""What a run writes down (metrics.jsonl, TensorBoard) and what it tells whoever watches."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from openvse.encoders import Coverage
from openvse.files import refusal_of_disk, write_whole, writing

ENDS_EPOCH = ("validation", "curves")
"""The kinds of records that are written once an epoch, after its last step."""


@dataclass(frozen=True)
class StepReport:
    """One step of training.

    Attributes:
        epoch: from 1.
        step: done steps of the epoch.
        global_step: done steps of the run.
        terms: each weighted term of the loss, and ``loss``.
        learning_rate: the base rate.
        images_per_s: positive pairs, or questions, per second over the last steps.
        unit: what they are.
    """

    epoch: int
    step: int
    global_step: int
    terms: Mapping[str, float]
    learning_rate: float
    images_per_s: float
    unit: str = "pairs"


@dataclass(frozen=True)
class EpochReport:
    """One epoch of training and the validation after it.

    Attributes:
        epoch: from 1.
        loss: its mean over the epoch.
        metrics: of the validation.
        best: whether it is the best so far.
        seconds: of training so far.
        summary: the validation in a few words.
    """

    epoch: int
    loss: float
    metrics: Mapping[str, float]
    best: bool
    seconds: float
    summary: str = ""


@runtime_checkable
class Watcher(Protocol):
    """Whoever watches a run; the command line shows its progress."""

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Training begins, or goes on."""
        ...

    def step(self, report: StepReport) -> None:
        """A step is done."""
        ...

    def epoch(self, report: EpochReport) -> None:
        """An epoch and its validation are done."""
        ...

    def warn(self, message: str) -> None:
        """Something needs the user's attention."""
        ...

    def note(self, message: str) -> None:
        """Something is worth a line, and nothing is wrong."""
        ...


class Silent:
    """Watches and says nothing."""

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Say nothing."""

    def step(self, report: StepReport) -> None:
        """Say nothing."""

    def epoch(self, report: EpochReport) -> None:
        """Say nothing."""

    def warn(self, message: str) -> None:
        """Say nothing."""

    def note(self, message: str) -> None:
        """Say nothing."""


class MetricsLog:
    """Appends to ``metrics.jsonl`` and TensorBoard.

    A resumed run repeats what came after its checkpoint, so that is dropped.

    Args:
        folder: the run's folder.
        last_step: steps that the checkpoint holds; records of later ones are dropped.
        epochs: epochs whose validation the checkpoint holds; None means all those that ``last_step`` ends. It may
            have been written after the last step of an epoch and before its validation.

    Raises:
        DiskError: the disk is full, or refuses; so do all methods.
    """

    def __init__(self, folder: Path, last_step: int, epochs: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = folder / "metrics.jsonl"
        _keep_until(self._path, last_step, epochs)
        self._excepthook = threading.excepthook
        threading.excepthook = self._without_disk_errors
        with writing(folder / "tensorboard"):
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=last_step + 1)

    def write(self, kind: str, epoch: int, global_step: int, values: Mapping[str, float]) -> None:
        """Add one record; a reader sees whole lines only."""
        self._append({"kind": kind, "epoch": epoch, "global_step": global_step, **values})
        with writing(self._path.with_name("tensorboard")):
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, global_step)

    def write_curves(self, epoch: int, global_step: int, curves: Mapping[str, Sequence[float]]) -> None:
        """Add one record of curves (``"kind": "curves"``), which TensorBoard has no scalar for."""
        self._append({"kind": "curves", "epoch": epoch, "global_step": global_step, **curves})

    def write_coverage(self, coverage: Coverage) -> None:
        """Add the record of what the text encoder knows of the training sentences (``"kind": "vocabulary"``)."""
        self._append({"kind": "vocabulary", "epoch": 0, "global_step": 0, **asdict(coverage)})

    def write_phase(self, epoch: int, global_step: int, phase: int, changes: Mapping[str, object]) -> None:
        """Add the record of a phase that begins (``"kind": "phase"``), with what it sets."""
        self._append(
            {"kind": "phase", "epoch": epoch, "global_step": global_step, "phase": phase, "sets": changes}
        )

    def close(self) -> None:
        """Flush TensorBoard."""
        try:
            with writing(self._path.with_name("tensorboard")):
                self._board.close()
        finally:
            threading.excepthook = self._excepthook

    def _append(self, record: Mapping[str, object]) -> None:
        with writing(self._path), self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _without_disk_errors(self, failure: threading.ExceptHookArgs) -> None:
        """Leave a full disk, which TensorBoard's thread meets, to the thread that trains: it is told, too."""
        if refusal_of_disk(failure.exc_value) is None:
            self._excepthook(failure)


def _keep_until(path: Path, last_step: int, epochs: int | None) -> None:
    if not path.exists():
        return
    if last_step == 0:  # of a run that was killed before its first checkpoint, nothing stays
        path.unlink()
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
            ends_epoch = record["kind"] in ENDS_EPOCH and epochs is not None
            if record["global_step"] <= last_step and not (ends_epoch and record["epoch"] > epochs):
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # the line that a killed run was writing
    write_whole(path, "".join(f"{line}\n" for line in kept))
