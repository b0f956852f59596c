"""The records of a run (metrics.jsonl, TensorBoard), and its reports to a watcher."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from openvse.encoders import Coverage
from openvse.files import refusal_of_disk, write_whole, writing

ENDS_EPOCH = ("validation", "curves", "time")
"""The kinds of records that are written once per epoch, after its last step."""


@dataclass(frozen=True)
class StepReport:
    """One step of training.

    Attributes:
        epoch: the number of the epoch, from 1.
        step: the number of steps of the epoch that are done.
        global_step: the number of steps of the run that are done.
        terms: the value of each weighted term of the loss, and their sum as ``loss``.
        learning_rate: the base learning rate.
        images_per_s: the number of positive pairs or questions per second, over the last steps.
        unit: the name of what ``images_per_s`` counts.
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
        epoch: the number of the epoch, from 1.
        loss: the mean loss of the epoch.
        metrics: the metrics of the validation.
        best: whether this validation is the best so far.
        seconds: the training time so far, in seconds.
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
    """An observer of a run; that of the command line shows the progress."""

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Called when training starts or continues."""
        ...

    def step(self, report: StepReport) -> None:
        """Called after a step."""
        ...

    def epoch(self, report: EpochReport) -> None:
        """Called after an epoch and its validation."""
        ...

    def warn(self, message: str) -> None:
        """Called with a warning that needs the user's attention."""
        ...

    def note(self, message: str) -> None:
        """Called with a message that is not a warning."""
        ...


class Silent:
    """A watcher that does nothing."""

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Do nothing."""

    def step(self, report: StepReport) -> None:
        """Do nothing."""

    def epoch(self, report: EpochReport) -> None:
        """Do nothing."""

    def warn(self, message: str) -> None:
        """Do nothing."""

    def note(self, message: str) -> None:
        """Do nothing."""


class MetricsLog:
    """Appends records to ``metrics.jsonl`` and TensorBoard.

    A resumed run repeats the steps after its checkpoint, so their old records are dropped.

    Args:
        folder: the folder of the run.
        last_step: the number of steps in the checkpoint; records of later steps are dropped.
        epochs: the number of epochs whose validation the checkpoint includes; None means all epochs that are over at
            ``last_step``. A checkpoint can be written between the last step of an epoch and its validation.

    Raises:
        DiskError: the disk is full or cannot be written to. All methods raise it too.
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
        """Add one record; a reader only sees complete lines."""
        self._append({"kind": kind, "epoch": epoch, "global_step": global_step, **values})
        with writing(self._path.with_name("tensorboard")):
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, global_step)

    def write_curves(self, epoch: int, global_step: int, curves: Mapping[str, Sequence[float]]) -> None:
        """Add one record of curves (``"kind": "curves"``); they are not scalars, so TensorBoard does not get them."""
        self._append({"kind": "curves", "epoch": epoch, "global_step": global_step, **curves})

    def write_coverage(self, coverage: Coverage) -> None:
        """Add the record of the words that the text encoder knows (``"kind": "vocabulary"``)."""
        self._append({"kind": "vocabulary", "epoch": 0, "global_step": 0, **asdict(coverage)})

    def write_environment(self, epoch: int, global_step: int, facts: Mapping[str, str]) -> None:
        """Add the record of a session (``"kind": "environment"``): software, machine and start; not for TensorBoard."""
        self._append({"kind": "environment", "epoch": epoch, "global_step": global_step, **facts})

    def write_cost(self, epoch: int, global_step: int, seconds: float, memory: int | None) -> None:
        """Add the record of what training has cost up to an epoch's end (``"kind": "time"``): seconds, peak bytes."""
        known = {} if memory is None else {"memory_bytes": memory}
        self._append(
            {"kind": "time", "epoch": epoch, "global_step": global_step, "seconds": seconds, **known}
        )

    def write_phase(self, epoch: int, global_step: int, phase: int, changes: Mapping[str, object]) -> None:
        """Add the record of a phase that begins (``"kind": "phase"``), with the settings that it changes."""
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
        """Ignore a full disk in the thread of TensorBoard: the thread that trains raises the error too."""
        if refusal_of_disk(failure.exc_value) is None:
            self._excepthook(failure)


def _keep_until(path: Path, last_step: int, epochs: int | None) -> None:
    if not path.exists():
        return
    if last_step == 0:  # the run was killed before its first checkpoint: drop everything
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
