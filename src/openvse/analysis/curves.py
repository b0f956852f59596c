"""What runs wrote while they trained: validation, loss, and AdOpt's number of negatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openvse.analysis.opening import named_sources
from openvse.analysis.result import Analysis, Draw
from openvse.errors import OpenVSEError, nearest
from openvse.output.figures import COLUMN, colour, legend_below, line_style, new_figure
from openvse.output.table import Table
from openvse.tasks.runs import find_run
from openvse.training.records import METRICS, RunRecords, read_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "training"
_NEGATIVES = re.compile(r"(?:(?P<term>.+)\.)?(?P<side>i2t|t2i)_num_negatives$")


@dataclass(frozen=True)
class History:
    """What a run recorded.

    Attributes:
        name: the name of the run.
        recorded: its records.
    """

    name: str
    recorded: RunRecords

    def steps_per_epoch(self) -> float:
        """Return the number of steps of an epoch, from the last validation."""
        last = self.recorded.of("validation")[-1]
        return max(float(last["global_step"]) / max(float(last["epoch"]), 1.0), 1e-9)


def read_history(word: str, name: str) -> History:
    """Read the log of a run; a last line that is still being written is left out.

    Raises:
        OpenVSEError: the run has no log, or it holds no validation.
    """
    path = (find_run(word).folder or Path(word)) / METRICS
    history = History(name, read_records(path))
    if not history.recorded.of("validation"):
        raise OpenVSEError(
            f"{path} has no validation yet: wait until the run has finished its first epoch, or leave it out"
        )
    return history


def analyze_training(words: Sequence[str], metric: str = "") -> Analysis:
    """Draw validation, loss, and where runs have it the number of negatives (VSE+2AD, Fig. C-2) of several runs.

    Args:
        words: the folders of the runs.
        metric: the metric of the validation; by default rsum or accuracy.

    Raises:
        OpenVSEError: a run has no log, or the runs do not share the metric.
    """
    histories = [read_history(source, name) for name, source in named_sources(words).items()]
    metric = _metric(histories, metric)
    validation = [
        (h.name, r["epoch"], float(r[metric])) for h in histories for r in h.recorded.of("validation")
    ]
    loss = [
        (h.name, r["global_step"], float(r["loss"]))
        for h in histories
        for r in h.recorded.of("train")
        if "loss" in r
    ]
    negatives = [
        (h.name, found["term"] or "", found["side"], r["global_step"], float(value))
        for h in histories
        for r in h.recorded.of("diagnostics")
        for key, value in r.items()
        if (found := _NEGATIVES.match(key))
    ]
    tables = {
        "validation": Table(("run", "epoch", metric), validation),
        "loss": Table(("run", "step", "loss"), loss),
    }
    figures: dict[str, Draw] = {
        "validation": lambda: _draw_validation(histories, validation, metric),
        "loss": lambda: _draw_steps(histories, {h.name: _of(loss, h.name) for h in histories}, "loss"),
    }
    if negatives:
        tables["negatives"] = Table(("run", "term", "direction", "step", "negatives"), negatives)
        figures["negatives"] = lambda: _draw_negatives(histories, negatives)
    summary = [_summary(h, metric, [n for n in negatives if n[0] == h.name]) for h in histories]
    columns = ("run", "epochs", f"best {metric}", "at epoch", "negatives, first", "negatives, last")
    return Analysis(NAME, Table(columns, summary), tables, figures)


def _metric(histories: Sequence[History], metric: str) -> str:
    shared = set.intersection(
        *(
            {key for key, value in record.items() if isinstance(value, int | float)}
            for h in histories
            for record in h.recorded.of("validation")
        )
    ) - {"epoch", "global_step"}
    metric = metric or next((name for name in ("rsum", "accuracy") if name in shared), "")
    if metric not in shared:
        close = nearest(metric, sorted(shared)) if metric else ""
        raise OpenVSEError(
            f"the validations of these runs share no metric {metric!r}{close} (shared: "
            f"{', '.join(sorted(shared)) or 'none'}): name runs of one task, or another --metric"
        )
    return metric


def _summary(
    history: History, metric: str, negatives: Sequence[Sequence[Any]]
) -> tuple[str, int, float, int, str, str]:
    validated = history.recorded.of("validation")
    best = max(validated, key=lambda record: float(record[metric]))
    first, last = (f"{negatives[at][4]:.0f}" if negatives else "" for at in (0, -1))
    return history.name, len(validated), float(best[metric]), int(best["epoch"]), first, last


def _of(rows: Sequence[Sequence[Any]], name: str) -> list[tuple[float, float]]:
    return [(float(row[-2]), float(row[-1])) for row in rows if row[0] == name]


def _draw_validation(
    histories: Sequence[History], rows: Sequence[tuple[str, int, float]], metric: str
) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(COLUMN, 2.4 + 0.13 * len(histories))
    axes = figure.subplots()
    for number, history in enumerate(histories):
        points = _of(rows, history.name)
        axes.plot(
            *zip(*points, strict=True), "o" + line_style(number), color=colour(number), label=history.name
        )
        best = max(points, key=lambda point: point[1])
        axes.plot(*best, "o", markersize=6, markerfacecolor="none", markeredgecolor=colour(number))
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{metric.upper() if metric == 'rsum' else metric} on validation")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes, columns=2)
    return figure


def _draw_steps(
    histories: Sequence[History], points: dict[str, list[tuple[float, float]]], label: str
) -> Figure:
    figure = new_figure(COLUMN, 2.4 + 0.13 * len(histories))
    axes = figure.subplots()
    for number, history in enumerate(histories):
        if points[history.name]:
            steps = history.steps_per_epoch()
            epochs = [(step / steps, value) for step, value in points[history.name]]
            style = line_style(number)
            axes.plot(*zip(*epochs, strict=True), style, color=colour(number), label=history.name)
    values = [value for listed in points.values() for _, value in listed]
    if values and min(values) > 0 and max(values) > 100 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_plain())
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    legend_below(figure, axes, columns=2)
    return figure


def _draw_negatives(histories: Sequence[History], rows: Sequence[tuple[str, str, str, int, float]]) -> Figure:
    figure = new_figure(2 * COLUMN, 2.4 + 0.13 * len(histories))
    grid = figure.subplots(1, 2, sharey=True)
    for axes, side, title in zip(
        grid, ("i2t", "t2i"), ("images asking for texts", "texts asking for images"), strict=True
    ):
        for number, history in enumerate(histories):
            points = [(row[3], row[4]) for row in rows if (row[0], row[2]) == (history.name, side)]
            if points:
                steps = history.steps_per_epoch()
                epochs = [(step / steps, value) for step, value in points]
                style = line_style(number)
                axes.plot(*zip(*epochs, strict=True), style, color=colour(number), label=history.name)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_plain())
        axes.set_title(title)
        axes.set_xlabel("epoch")
    grid[0].set_ylabel("negatives of an anchor")
    legend_below(figure, grid[0], columns=4)
    return figure


def _plain() -> Callable[[float, float], str]:
    return lambda value, _: f"{value:g}"
