"""The section of a report about runs that began from a model: what training changed on validation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from openvse.evaluation.metrics import RECALL_AT
from openvse.evaluation.report import metric_title
from openvse.output.documents import CONFIDENCE
from openvse.report.measure import MeasuredReport
from openvse.report.run import ReportedRun

_SHOWN = ("rsum", *(f"{side}_r{k}" for side in ("i2t", "t2i") for k in RECALL_AT), "accuracy")
_VALUES = ("before", "after", "difference", "interval")


def start_sections(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return a section with a table for each run that began from a model; nothing if none did, or none has finished."""
    tables = [table for each in reports if (table := _table(each.run, named=len(reports) > 1))]
    return (
        [f"<section>\n<h2>Before and after, on validation</h2>\n{''.join(tables)}</section>"]
        if tables
        else []
    )


def start_of(run: ReportedRun) -> Mapping[str, Any]:
    """Return what a run says about the model that it began from: ``name``, ``fingerprint`` and ``changes`` by metric.

    The name is that of the recipe, which says more than the last part of a path.

    It is empty for a run without such a model. ``changes`` is empty until the run has finished.
    """
    written = _written(run)
    stated = (run.recipe or {}).get("start")
    name = {"name": stated} if isinstance(stated, str) else {}
    if isinstance(written.get("start"), Mapping):
        return {**written["start"], **name, "changes": written.get("metrics", {})}
    kept = run.config.provenance.get("start")
    # A model of epoch 0 is the start itself, whose folder tells of its own start.
    return {**kept, **name} if isinstance(kept, Mapping) and run.best_epoch != 0 else {}


def _written(run: ReportedRun) -> Mapping[str, Any]:
    if run.named.folder is None:
        return {}
    try:
        found = json.loads((run.named.folder / "before_after.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _table(run: ReportedRun, *, named: bool) -> str:
    start = start_of(run)
    changes = start.get("changes")
    changes = changes if isinstance(changes, Mapping) else {}
    lines = "\n".join(
        f'<tr><th scope="row">{escape(metric_title(name))}</th>{_cells(changes[name])}</tr>'
        for name in _SHOWN
        if isinstance(changes.get(name), Mapping) and all(key in changes[name] for key in _VALUES)
    )
    if not lines:
        return ""
    heading = f"<h3>{escape(run.name)}</h3>\n" if named else ""
    head = "".join(f"<th>{title}</th>" for title in ("before", "after", "difference"))
    kept = (
        " No epoch was above it, so that the run kept it; after: the best epoch."
        if run.best_epoch == 0
        else ""
    )
    return (
        f'{heading}<div class="wide"><table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{lines}\n'
        f'</tbody>\n</table></div>\n<ul class="notes"><li>before: {escape(str(start.get("name", "")))}, the model '
        f"that the run began from.{kept}</li><li>below a difference: its {CONFIDENCE:.0%} interval, by a paired "
        f"bootstrap over images; one that holds 0 shows no difference</li></ul>\n"
    )


def _cells(change: Mapping[str, Any]) -> str:
    low, high = change["interval"]
    return (
        f"<td>{change['before']:.1f}</td><td>{change['after']:.1f}</td>"
        f"<td>{change['difference']:+.1f}<small>{low:+.1f} to {high:+.1f}</small></td>"
    )
