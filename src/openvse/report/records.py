"""The records of a run, read from ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openvse.errors import OpenVSEError

METRICS = "metrics.jsonl"

_PLACE = ("kind", "epoch", "global_step")


@dataclass(frozen=True)
class Series:
    """A number over the steps of a run.

    Attributes:
        steps: the number of steps done.
        epochs: the epoch of each value.
        values: the values; those that are not finite are left out.
    """

    steps: Sequence[float]
    epochs: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class RunRecords:
    """What a run has written about itself.

    Attributes:
        records: the records, in the order of the file.
        unreadable: the number of lines that are no records, such as one that a killed run was writing.
    """

    records: tuple[Mapping[str, Any], ...]
    unreadable: int = 0

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the records of one kind."""
        return [record for record in self.records if record["kind"] == kind]

    def names(self, kind: str) -> list[str]:
        """Return the names of the numbers in the records of a kind, in the order of their first appearance."""
        found = dict.fromkeys(name for record in self.of(kind) for name in record if name not in _PLACE)
        return [name for name in found if len(self.series(kind, name).values)]

    def series(self, kind: str, name: str) -> Series:
        """Return one number over the run; empty if it was never recorded."""
        there = [
            tuple(float(record[key]) for key in ("global_step", "epoch", name))
            for record in self.of(kind)
            if _is_number(record.get(name))
        ]
        steps, epochs, values = zip(*there, strict=True) if there else ((), (), ())
        return Series(steps, epochs, values)

    def curves(self, epoch: int | None) -> Mapping[str, Sequence[float]]:
        """Return the learned curves after an epoch, or the last ones if that epoch has none."""
        there = self.of("curves")
        if not there:
            return {}
        of_epoch = next((record for record in there if record["epoch"] == epoch), there[-1])
        return {
            name: values
            for name, values in of_epoch.items()
            if isinstance(values, list) and values and all(map(_is_number, values))
        }

    def seconds(self) -> float | None:
        """Return the training time in seconds, as far as it was recorded."""
        times = self.series("time", "seconds").values
        return max(times) if times else None

    def memory(self) -> float | None:
        """Return the peak memory of training in bytes; None if it was not recorded."""
        peaks = self.series("time", "memory_bytes").values
        return max(peaks) if peaks else None

    def seconds_by_speed(self, batch_size: int) -> float | None:
        """Return the training time from the speeds of the steps, for runs that did not record it; None if unknown."""
        speeds = self.series("train", "images_per_s")
        if not speeds.values or min(speeds.values) <= 0:
            return None
        done = [0.0, *speeds.steps[:-1]]
        return sum(
            (step - before) * batch_size / speed
            for before, step, speed in zip(done, speeds.steps, speeds.values, strict=True)
        )


def read_records(path: Path) -> RunRecords:
    """Read ``metrics.jsonl``; lines that are no records are counted and left out.

    Raises:
        OpenVSEError: there is no such file, it cannot be read, or it holds no record.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise OpenVSEError(
            f"{path.parent} has no {METRICS} that can be read ({error.strerror}), so there is nothing to report: name "
            f"a run that has trained, or its best/ for a report on the model alone"
        ) from error
    found = [*_records(lines)]
    if not found:
        raise OpenVSEError(
            f"{path} holds no record: the run has not finished a step, or the file is damaged; name another run"
        )
    return RunRecords(tuple(found), len([line for line in lines if line.strip()]) - len(found))


def _records(lines: Iterable[str]) -> Iterable[Mapping[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
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
