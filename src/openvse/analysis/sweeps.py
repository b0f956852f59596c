"""Figures of finished sweeps beside each other: a metric over one of their keys, or one point for each sweep."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openvse.analysis.result import Analysis, Draw
from openvse.analysis.sweep import NAME as SWEEP
from openvse.analysis.sweep import VIEW_COSINE, draw_line, draw_points, number_in
from openvse.errors import DataError, OpenVSEError, nearest
from openvse.evaluation.metrics import RECALLS
from openvse.evaluation.report import metric_title
from openvse.output.figures import COLUMN, PAGE, lines_of, new_figure
from openvse.output.table import Table
from openvse.tasks.runs import split_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sweeps"


@dataclass(frozen=True)
class KeptSweep:
    """The table that a sweep wrote.

    Attributes:
        keys: what was varied, in the order of the columns.
        rows: a mapping for each setting: its value of each key, and its metrics.
    """

    keys: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]

    def by(self, key: str, metric: str) -> dict[str, list[float]]:
        """Return the metric of all settings by their value of a key; without a key, under an empty name."""
        by_value: dict[str, list[float]] = {}
        for row in self.rows:
            if row.get(metric):
                by_value.setdefault(row[key] if key else "", []).append(float(row[metric]))
        return by_value


def read_sweep(folder: Path) -> KeptSweep:
    """Read ``sweep.csv`` in the folder that ``openvse sweep`` wrote to; raise DataError if there is no such table."""
    path = folder / f"{SWEEP}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = tuple(csv.DictReader(file))
        columns = [*rows[0]]
        return KeptSweep(tuple(columns[: columns.index(RECALLS[0])]), rows)
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise DataError(f"{path} is not the table of a sweep: give the --out of 'openvse sweep'") from error


def open_sweeps(words: Sequence[str]) -> dict[str, KeptSweep]:
    """Read sweeps by their names: ``NAME=FOLDER``, or a folder, whose name is taken.

    Raises:
        OpenVSEError: a name is given twice, or see ``read_sweep``.
    """
    given = [(name or Path(folder).resolve().name, folder) for name, folder in map(split_name, words)]
    names = [name for name, _ in given]
    if twice := next((name for name in names if not name or names.count(name) > 1), None):
        raise OpenVSEError(f"two sweeps are called {twice!r}: write NAME=FOLDER, each with a name of its own")
    return {name: read_sweep(Path(folder)) for name, folder in given}


def analyze_sweeps(sweeps: Mapping[str, KeptSweep], over: Sequence[str], metrics: Sequence[str]) -> Analysis:
    """Draw each metric over each key in a panel for each sweep, or without a key in one panel over the sweeps.

    A point is the mean over all settings with its value, and its bar is their standard deviation.

    Args:
        sweeps: the sweeps by their names.
        over: keys that all sweeps vary; empty draws a point for each sweep (PVSE, Fig. 6).

    Raises:
        OpenVSEError: a sweep does not vary a key, or has no such metric.
    """
    for name, sweep in sweeps.items():
        if unknown := next((key for key in over if key not in sweep.keys), None):
            raise OpenVSEError(
                f"{name} does not vary {unknown!r}{nearest(unknown, sweep.keys)}: --over is one of "
                f"{', '.join(sweep.keys)}"
            )
        if missing := next((metric for metric in metrics if not sweep.by("", metric)), None):
            raise OpenVSEError(
                f"{name} has no {missing}: give another --metric, or sweep with --metric {missing}"
            )
    rows = [
        (name, key, value, metric, float(np.mean(values)), _spread(values), len(values))
        for metric in metrics
        for key in over or [""]
        for name, sweep in sweeps.items()
        for value, values in sweep.by(key, metric).items()
    ]
    table = Table(("sweep", "key", "value", "metric", "mean", "spread", "settings"), rows)
    figures: dict[str, Draw] = {
        "" if metric == metrics[0] else metric: partial(_draw, sweeps, over, metric) for metric in metrics
    }
    return Analysis(NAME, table, {"": table}, figures)


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _draw(sweeps: Mapping[str, KeptSweep], over: Sequence[str], metric: str) -> Figure:
    label = "cosine of two views" if metric == VIEW_COSINE else metric_title(metric)
    if not over:
        together = {name: sweep.by("", metric)[""] for name, sweep in sweeps.items()}
        panels = [[("", "", together)]]
    else:
        panels = [[(name, key, sweep.by(key, metric)) for name, sweep in sweeps.items()] for key in over]
    names = [len(groups) for row in panels for *_, groups in row if None in map(number_in, groups)]
    width = COLUMN if len(panels[0]) == 1 else PAGE / 3 * max(2, len(panels[0]))
    figure = new_figure(width, len(panels) * max(2.1, 0.24 * max(names, default=0) + 0.9))
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False)
    for line, row in zip(grid, panels, strict=True):
        for axes, (name, key, groups) in zip(line, row, strict=True):
            means = [float(np.mean(values)) for values in groups.values()]
            spread = [_spread(values) for values in groups.values()]
            numbers = [number_in(value) for value in groups]
            axes.set_title(lines_of(name, 30) if len(sweeps) > 1 else "")
            if key and None not in numbers:
                points = sorted(zip([n for n in numbers if n is not None], means, spread, strict=True))
                draw_line(axes, points, metric)
                axes.set_xlabel(key)
                axes.set_ylabel(label)
            else:
                draw_points(axes, [*groups], means, spread, metric)
                axes.set_xlabel(label)
    if any(len(values) > 1 for row in panels for *_, groups in row for values in groups.values()):
        figure.suptitle("mean and standard deviation over all settings", fontsize=7)
    return figure
