"""The sections of a report about the runs themselves: data, leakage, recipe, time, machine and command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from html import escape
from typing import Any

import yaml

from openvse.corpus.splits import SPLITS
from openvse.corpus.trained_on import remembers_training
from openvse.report.measure import MeasuredReport
from openvse.report.page_start import start_of
from openvse.report.run import ReportedRun


def run_sections(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return a section with a card for each run."""
    cards = "\n".join(_card(each, named=len(reports) > 1) for each in reports)
    title = "The runs" if len(reports) > 1 else "The run"
    return [f'<section>\n<h2>{title}</h2>\n<div class="cards">\n{cards}\n</div>\n</section>']


def _card(each: MeasuredReport, *, named: bool) -> str:
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd{' class=leaky' if leaky else ''}>{value}</dd>"
        for name, value, leaky in _facts(each)
        if value
    )
    heading = f"<h3>{escape(each.run.name)}</h3>" if named else ""
    return f'<div class="card">{heading}<dl class="facts">{facts}</dl>{"".join(_details(each.run))}</div>'


def _facts(each: MeasuredReport) -> Iterator[tuple[str, str, bool]]:
    """Yield names and values (HTML) of facts, and whether one is about leakage."""
    run = each.run
    provenance = run.config.provenance
    data = provenance.get("data")
    data = data if isinstance(data, Mapping) else {}
    yield "Trained on", escape(_data(data)), False
    yield "Test images in training", *_leakage(each)
    yield "Licence of the data", escape(str(data.get("licence", ""))), False
    yield "Recipe", escape(_recipe(provenance)), False
    yield "Began from", _start(run), False
    yield "Parts", escape(_parts(run.config.spec)), False
    yield "Weights", f"{each.parameters:,}, of which {each.trained:,} are learned", False
    yield "Model", f"<code>{escape(each.fingerprint)}</code>", False
    yield "Best epoch", escape(_epochs(run)), False
    yield "Training time", escape(_time(run)), False
    yield "Peak memory", _memory(run), False
    for name, value in _environment(run):
        yield name, escape(value), False
    if run.records is not None and run.records.unreadable:
        yield "Damaged records", f"{run.records.unreadable} line(s) of metrics.jsonl are left out", False
    if command := run.command():
        yield "Again", f"<code>{escape(command)}</code>", False


def _data(data: Mapping[str, Any]) -> str:
    splits = data.get("splits")
    splits = splits if isinstance(splits, Mapping) else {}
    ordered = [
        *(split for split in SPLITS if split in splits),
        *(each for each in splits if each not in SPLITS),
    ]
    counts = ", ".join(f"{splits[each]:,} {each}" for each in ordered if isinstance(splits[each], int))
    return f"{data.get('name', 'unknown data')}{f': {counts} images' if counts else ''}"


def _leakage(each: MeasuredReport) -> tuple[str, bool]:
    if each.findings is None:
        return "", False
    if each.leaks:
        return escape(each.leaks[0].partition(": ")[2]), True
    if not remembers_training(each.run.config.provenance):
        return (
            "not known: the model does not remember its training images (an earlier version wrote it)",
            False,
        )
    return "none found among those that could be checked", False


def _recipe(provenance: Mapping[str, Any]) -> str:
    name, seed = provenance.get("recipe", ""), provenance.get("seed")
    return f"{name}{'' if seed is None else f', seed {seed}'}" if name else ""


def _start(run: ReportedRun) -> str:
    """Return the model that a run began from as HTML; "" for a run that began with new weights."""
    start = start_of(run)
    name, fingerprint = (escape(str(start.get(key, ""))) for key in ("name", "fingerprint"))
    return f"{name} <code>{fingerprint}</code>" if start else ""


def _parts(spec: Mapping[str, Any]) -> str:
    """Return the names of the parts of both towers and of the similarity or fusion."""

    def name(part: object) -> str:
        return str(part.get("name", "")) if isinstance(part, Mapping) else str(part or "")

    towers = [
        f"{side}: {name(tower.get('encoder'))} with {name(tower.get('aggregator')) or 'its own pooling'}"
        for side in ("image", "text")
        if isinstance(tower := spec.get(side), Mapping)
    ]
    others = [f"{kind}: {name(spec[kind])}" for kind in ("similarity", "fusion") if spec.get(kind)]
    width = [f"width {spec['embed_dim']}"] if "embed_dim" in spec else []
    return "; ".join([*towers, *others, *width])


def _epochs(run: ReportedRun) -> str:
    if run.records is None:
        return "" if run.best_epoch is None else str(run.best_epoch)
    done = run.records.series("validation", _first_metric(run)).epochs
    unfinished = run.named.unfinished()
    of = f" of {int(max(done))}" if done else ""
    return f"{run.best_epoch}{of}{'; the run is not finished' if unfinished else ''}"


def _first_metric(run: ReportedRun) -> str:
    names = run.records.names("validation") if run.records else []
    return names[0] if names else ""


def _time(run: ReportedRun) -> str:
    found = run.seconds()
    if found is None:
        return ""
    seconds, recorded = found
    how = "" if recorded else " (from the speed of its steps)"
    return f"{timedelta(seconds=round(seconds))}{how}, validation not counted"


def _memory(run: ReportedRun) -> str:
    most = run.records.memory() if run.records else None
    return "" if most is None else f"{most / 1e9:.2g} GB"


def _environment(run: ReportedRun) -> Iterator[tuple[str, str]]:
    sessions = run.records.of("environment") if run.records else []
    if not sessions:
        yield "openvse", str(run.config.provenance.get("openvse", ""))
        if run.records is not None:
            yield "Environment", "not recorded (an earlier version of openvse trained it)"
        return
    last = sessions[-1]
    yield "Started", str(sessions[0].get("started", "")) + _resumed(len(sessions))
    yield "Machine", ", ".join(str(last[key]) for key in ("device", "system", "precision") if last.get(key))
    versions = (f"{name} {last[name]}" for name in ("openvse", "torch", "python") if last.get(name))
    yield "Software", ", ".join(versions)
    commits = dict.fromkeys(str(session["commit"]) for session in sessions if session.get("commit"))
    yield "Commit of openvse", ", ".join(commits)


def _resumed(sessions: int) -> str:
    times = {1: "", 2: "; resumed once"}
    return times.get(sessions, f"; resumed {sessions - 1} times")


def _details(run: ReportedRun) -> Iterator[str]:
    if run.recipe is not None:
        text = yaml.safe_dump(dict(run.recipe), sort_keys=False, allow_unicode=True)
        yield f"<details><summary>The whole recipe</summary><pre>{escape(text)}</pre></details>"
