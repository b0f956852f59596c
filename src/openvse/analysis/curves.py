"""What runs wrote while they trained: validation, loss, and AdOpt's number of negatives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "training"
_NEGATIVES = re.compile(r"(?:(?P<term>.+)\.)?(?P<side>i2t|t2i)_num_negatives$")


def read_validated(word: str) -> RunRecords:
    """Read the whole records of a run; raise OpenVSEError if it has no log, or no validation."""
    path = (find_run(word).folder or Path(word)) / METRICS
    records = read_records(path)
    if not records.of("validation"):
        raise OpenVSEError(
            f"{path} has no validation yet: wait until the run has finished its first epoch, or leave it out"
        )
    return records


def analyze_training(words: Sequence[str], metric: str = "") -> Analysis:
    """Draw validation, loss, and where runs have it the number of negatives (VSE+2AD, Fig. C-2) of several runs.

    Args:
        metric: the metric of the validation; by default rsum or accuracy.

    Raises:
        OpenVSEError: a run has no log, or the runs do not share the metric.
    """
    runs = {name: read_validated(source) for name, source in named_sources(words).items()}
    metric = _metric([*runs.values()], metric)
    validation = [
        (name, r["epoch"], float(r[metric])) for name, run in runs.items() for r in run.of("validation")
    ]
    loss = [
        (name, r["global_step"], float(r["loss"]))
        for name, run in runs.items()
        for r in run.of("train")
        if "loss" in r
    ]
    negatives = [
        (name, match["term"] or "", match["side"], r["global_step"], float(value))
        for name, run in runs.items()
        for r in run.of("diagnostics")
        for key, value in r.items()
        if (match := _NEGATIVES.match(key))
    ]
    tables = {
        "validation": Table(("run", "epoch", metric), validation),
        "loss": Table(("run", "step", "loss"), loss),
    }
    figures: dict[str, Draw] = {
        "validation": lambda: _draw_validation([*runs], validation, metric),
        "loss": lambda: _draw_loss(runs, loss),
    }
    if negatives:
        tables["negatives"] = Table(("run", "term", "direction", "step", "negatives"), negatives)
        figures["negatives"] = lambda: _draw_negatives(runs, negatives)
    summary = [
        _summary(name, run, metric, [n for n in negatives if n[0] == name]) for name, run in runs.items()
    ]
    columns = ("run", "epochs", f"best {metric}", "at epoch", "negatives, first", "negatives, last")
    return Analysis(NAME, Table(columns, summary), tables, figures)


def _metric(runs: Sequence[RunRecords], metric: str) -> str:
    shared = set.intersection(
        *(
            {key for key, value in record.items() if isinstance(value, int | float)}
            for run in runs
            for record in run.of("validation")
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
    name: str, run: RunRecords, metric: str, negatives: Sequence[Sequence[Any]]
) -> tuple[str, int, float, int, str, str]:
    validated = run.of("validation")
    best = max(validated, key=lambda record: float(record[metric]))
    first, last = (f"{negatives[at][4]:.0f}" if negatives else "" for at in (0, -1))
    return name, len(validated), float(best[metric]), int(best["epoch"]), first, last


def _draw_validation(names: Sequence[str], rows: Sequence[tuple[str, int, float]], metric: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    for number, name in enumerate(names):
        points = [row[1:] for row in rows if row[0] == name]
        axes.plot(*zip(*points, strict=True), "o" + line_style(number), color=colour(number), label=name)
        best = max(points, key=lambda point: point[1])
        axes.plot(*best, "o", markersize=6, markerfacecolor="none", markeredgecolor=colour(number))
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{metric.upper() if metric == 'rsum' else metric} on validation")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes, columns=2)
    return figure


def _draw_loss(runs: Mapping[str, RunRecords], rows: Sequence[tuple[str, int, float]]) -> Figure:
    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    _draw_steps(axes, runs, rows)
    values = [row[-1] for row in rows]
    if values and min(values) > 0 and max(values) > 100 * min(values):
        _set_log(axes)
    axes.set_ylabel("loss")
    legend_below(figure, axes, columns=2)
    return figure


def _draw_negatives(
    runs: Mapping[str, RunRecords], rows: Sequence[tuple[str, str, str, int, float]]
) -> Figure:
    figure = new_figure(2 * COLUMN, 2.5)
    grid = figure.subplots(1, 2, sharey=True)
    titles = {"i2t": "images asking for texts", "t2i": "texts asking for images"}
    for axes, (side, title) in zip(grid, titles.items(), strict=True):
        _draw_steps(axes, runs, [row for row in rows if row[2] == side])
        _set_log(axes)
        axes.set_title(title)
    grid[0].set_ylabel("negatives of an anchor")
    legend_below(figure, grid[0], columns=4)
    return figure


def _draw_steps(axes: Axes, runs: Mapping[str, RunRecords], rows: Sequence[Sequence[Any]]) -> None:
    """Draw a line for each run that has rows, which end with a step and a value, over its epochs."""
    for number, (name, run) in enumerate(runs.items()):
        last = run.of("validation")[-1]
        steps = max(float(last["global_step"]) / max(float(last["epoch"]), 1.0), 1e-9)
        points = [(row[-2] / steps, row[-1]) for row in rows if row[0] == name]
        if points:
            axes.plot(*zip(*points, strict=True), line_style(number), color=colour(number), label=name)
    axes.set_xlabel("epoch")


def _set_log(axes: Axes) -> None:
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())
