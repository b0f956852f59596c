"""The records of a run (metrics.jsonl, TensorBoard), and its reports to a watcher."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from openvse.files import write_whole, writing

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

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
        self._path = folder / "metrics.jsonl"
        _keep_until(self._path, last_step, epochs)
        with writing(folder / "tensorboard"):
            self._board = _Board(folder / "tensorboard", last_step + 1)

    def write(self, kind: str, epoch: int, global_step: int, values: Mapping[str, float]) -> None:
        """Add one record of numbers, to TensorBoard too; a reader only sees complete lines."""
        self.note(kind, epoch, global_step, values)
        with writing(self._path.with_name("tensorboard")):
            self._board.write(global_step, {f"{kind}/{name}": value for name, value in values.items()})

    def note(self, kind: str, epoch: int, global_step: int, values: Mapping[str, object]) -> None:
        """Add a record that is not for TensorBoard.

        Args:
            kind: ``environment`` for software, machine and start of a session; ``vocabulary`` for the words that the
                text encoder knows; ``phase`` for a phase that begins, with the settings that it changes; ``curves`` for
                learned values; ``time`` for what training has cost up to an epoch's end, in seconds and peak bytes.
            epoch: the epoch, from 1.
            global_step: the number of steps of the run that are done.
            values: what the record holds.
        """
        record = {"kind": kind, "epoch": epoch, "global_step": global_step, **values}
        with writing(self._path), self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Close the file of TensorBoard."""
        with writing(self._path.with_name("tensorboard")):
            self._board.close()


class _Board:
    """A file of scalars for TensorBoard.

    TensorBoard's own writers, and PyTorch's, hand each scalar to a thread. A signal in the middle of that can leave the
    thread waiting for two minutes, and with it the end of the run. So this one writes in the thread that trains.

    Args:
        folder: the folder of the file.
        first_step: TensorBoard leaves out the records of earlier files from this step on.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._event = Event
        self._file = RecordWriter((folder / name).open("wb"))
        self._add(Event(step=first_step, file_version="brain.Event:2"))
        self._add(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the scalars of a step."""
        scalars = [{"tag": tag, "simple_value": value} for tag, value in values.items()]
        self._add(self._event(step=step, summary={"value": scalars}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write(event.SerializeToString())
        self._file.flush()


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
