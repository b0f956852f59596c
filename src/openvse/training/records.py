"""The records of a run (metrics.jsonl, TensorBoard), its reports to a watcher, and signs of collapse."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from openvse.errors import OpenVSEError, decoded_text
from openvse.files import parse_json, read_lines, write_whole, writing

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

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


_logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
"""The file in the folder of a run that holds its records, one a line."""

ENDS_EPOCH = ("validation", "curves", "time")
"""The kinds of records that are written once per epoch, after its last step."""

_PLACE = ("kind", "epoch", "global_step")


@dataclass(frozen=True)
class StepReport:
    """One step of training: its number in the epoch and in the run, its terms, and the speed over the last steps."""

    epoch: int
    step: int
    global_step: int
    terms: Mapping[str, float]
    learning_rate: float
    images_per_s: float
    unit: str = "pairs"


@dataclass(frozen=True)
class EpochReport:
    """One epoch of training and the validation after it. ``seconds`` is the training time of the run so far."""

    epoch: int
    loss: float
    metrics: Mapping[str, float]
    best: bool
    seconds: float
    summary: str = ""


@runtime_checkable
class Watcher(Protocol):
    """An observer of a run. The command line's observer shows the progress."""

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Called when training starts or continues."""
        return

    def step(self, report: StepReport) -> None:
        """Called after a step."""
        return

    def epoch(self, report: EpochReport) -> None:
        """Called after an epoch and its validation."""
        return

    def warn(self, message: str) -> None:
        """Called with a warning that needs the user's attention."""
        return

    def note(self, message: str) -> None:
        """Called with a message that is not a warning."""
        return


class Silent(Watcher):
    """A watcher that does nothing."""


class Logged(Watcher):
    """A watcher that logs notes and a line for each epoch as information, and warnings."""

    def epoch(self, report: EpochReport) -> None:
        best = "  best" if report.best else ""
        _logger.info("epoch %d  loss %.4g  %s%s", report.epoch, report.loss, report.summary, best)

    def warn(self, message: str) -> None:
        _logger.warning("%s", message)

    def note(self, message: str) -> None:
        _logger.info("%s", message)


class MetricsLog:
    """Appends records to ``metrics.jsonl`` and TensorBoard. Every method raises DiskError if the disk refuses.

    A resumed run repeats the steps after its checkpoint, so their old records are dropped.

    Args:
        epochs: the number of epochs whose validation the checkpoint includes. None means all epochs completed by
            ``last_step``. A checkpoint can be written between the last step of an epoch and its validation.
    """

    def __init__(self, folder: Path, last_step: int, epochs: int | None = None) -> None:
        self._path = folder / METRICS
        _keep_until(self._path, last_step, epochs)
        with writing(folder / "tensorboard"):
            self._board = _Board(folder / "tensorboard", last_step + 1)

    def write(self, kind: str, epoch: int, global_step: int, values: Mapping[str, float]) -> None:
        """Add one record of numbers, to TensorBoard too. A reader only sees complete lines."""
        self.note(kind, epoch, global_step, values)
        with writing(self._path.with_name("tensorboard")):
            self._board.write(global_step, {f"{kind}/{name}": value for name, value in values.items()})

    def note(self, kind: str, epoch: int, global_step: int, values: Mapping[str, object]) -> None:
        """Add a record that is not for TensorBoard, such as ``environment``, ``data``, ``phase`` or ``time``."""
        record = {"kind": kind, "epoch": epoch, "global_step": global_step, **values}
        with writing(self._path), self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Close the file of TensorBoard."""
        with writing(self._path.with_name("tensorboard")):
            self._board.close()


class _Board:
    """A file of scalars for TensorBoard, which leaves out the records of earlier files from ``first_step`` on.

    TensorBoard's own writers, and PyTorch's, hand each scalar to a thread. A signal during this can leave the thread
    waiting for two minutes, and with it the end of the run. So this one writes in the thread that trains.
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
    lines = []
    for line in read_lines(path):
        try:
            record = parse_json(line)
            ends_epoch = record["kind"] in ENDS_EPOCH and epochs is not None
            if record["global_step"] <= last_step and not (ends_epoch and record["epoch"] > epochs):
                lines.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # the line that a killed run was writing
    write_whole(path, "".join(f"{line}\n" for line in lines))


@dataclass(frozen=True)
class Series:
    """A number over the steps of a run, with the epoch of each value. Values that are not finite are left out."""

    steps: Sequence[float]
    epochs: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class RunRecords:
    """The records of a run, and the number of lines that are no records, as a killed run may leave."""

    records: tuple[Mapping[str, Any], ...]
    unreadable: int = 0

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the records of one kind."""
        return [record for record in self.records if record["kind"] == kind]

    def names(self, kind: str) -> list[str]:
        """Return the names of the numbers in the records of a kind, in the order of their first appearance."""
        names = dict.fromkeys(name for record in self.of(kind) for name in record if name not in _PLACE)
        return [name for name in names if len(self.series(kind, name).values)]

    def series(self, kind: str, name: str) -> Series:
        """Return one number over the run, empty if it was never recorded."""
        there = [
            tuple(float(record[key]) for key in ("global_step", "epoch", name))
            for record in self.of(kind)
            if _is_number(record.get(name))
        ]
        steps, epochs, values = zip(*there, strict=True) if there else ((), (), ())
        return Series(steps, epochs, values)

    def curves(self, epoch: int | None) -> Mapping[str, Sequence[float]]:
        """Return the learned curves after an epoch, or the last ones if that epoch has none."""
        if not (there := self.of("curves")):
            return {}
        of_epoch = next((record for record in there if record["epoch"] == epoch), there[-1])
        return {
            name: values
            for name, values in of_epoch.items()
            if isinstance(values, list) and values and all(map(_is_number, values))
        }

    def seconds(self) -> float | None:
        """Return the recorded training time in seconds."""
        return max(self.series("time", "seconds").values, default=None)

    def memory(self) -> float | None:
        """Return the peak memory of training in bytes. None if it was not recorded."""
        return max(self.series("time", "memory_bytes").values, default=None)


def read_records(path: Path) -> RunRecords:
    """Read ``metrics.jsonl``, and count lines that are no records. Raise OpenVSEError if it holds no record."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise OpenVSEError(
            f"{path.parent} has no {METRICS} that can be read ({error.strerror}), and its training left no other "
            f"record: name a run that has trained, or its best/ for a report on the model alone"
        ) from error
    if not (records := [*_records(lines)]):
        raise OpenVSEError(f"{path} holds no record, because no step finished or the file is damaged: name another run")
    return RunRecords(tuple(records), len([line for line in lines if line.strip()]) - len(records))


def _records(lines: Iterable[bytes]) -> Iterable[Mapping[str, Any]]:
    for line in lines:
        try:
            record = parse_json(decoded_text(line, METRICS))
        except ValueError:
            continue
        if (
            isinstance(record, dict)
            and isinstance(record.get("kind"), str)
            and all(_is_number(record.get(key)) for key in _PLACE[1:])
        ):
            yield record


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
