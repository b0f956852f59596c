"""Runs on one self-contained web page: figures or a comparison, training, and queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from openvse.corpus.splits import LEAKAGE, SPLITS
from openvse.corpus.trained_on import remembers_training
from openvse.evaluation.comparison import Comparison
from openvse.evaluation.metrics import Metrics, metric_names
from openvse.evaluation.report import (
    AnsweredQueries,
    AnsweredQuery,
    Findings,
    Shown,
    interval_cells,
    metric_cells,
    metric_title,
)
from openvse.files import read_json
from openvse.media.listing import ImageFile
from openvse.output.documents import CONFIDENCE, html_page, percent
from openvse.output.figures import COLUMN, colour, new_figure, svg_element
from openvse.output.table import Table
from openvse.output.thumbnails import thumbnail_uri
from openvse.report.tables import (
    MeasuredReport,
    ReportedRun,
    compared_metrics,
    difference_table,
    letters,
    remarks,
    row_remarks,
    row_table,
    shown_metrics,
    sign_table,
)
from openvse.specs.load import dump_yaml, list_recipes, read_recipe
from openvse.specs.model import section
from openvse.training.kind import published_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VALIDATION = ("rsum", "i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "accuracy")
_COEFFICIENTS = re.compile(r"(?P<part>.*?)\.?coefficients_(?P<size>\d+)$")
_SIDES = {"image": "images", "text": "texts"}
_TITLES = {"images_per_s": "items per second", "learning_rate": "learning rate"}


SIDE_PX = 176
"""The longer side of an image on the page, small because a page holds many."""

_TICK = "\N{CHECK MARK}"
_Small = Callable[[ImageFile], str | None]


def runs_page(
    reports: Sequence[MeasuredReport],
    comparison: Comparison | None = None,
    examples: Mapping[str, Sequence[AnsweredQueries]] | None = None,
) -> str:
    """Return an HTML page about runs, which begins with their figures on a test set.

    Args:
        reports: the runs. A single run shows its figures.
        comparison: the figures of several runs.
        examples: the gains and losses of each row of the comparison against the first, by the name of the row.
    """
    small: _Small = cache(lambda image: thumbnail_uri(image, side=SIDE_PX))
    style = files("openvse.report").joinpath("report.css").read_text(encoding="utf-8")
    lines = comparison.warnings() if comparison else [line for each in reports for line in each.leaks]
    names, named = [each.run.name for each in reports], len(reports) > 1
    starts = "".join(_start_table(each.run, named=named) for each in reports)
    cards = "\n".join(_run_card(each, named=named) for each in reports)
    runs = f'<h2>The run{"s" * named}</h2>\n<div class="cards">\n{cards}\n</div>'
    sections = [
        *(f'<p class="leak">{escape(line)}</p>' for line in lines if line.startswith(LEAKAGE)),
        *_figures(reports),
        *(comparison_sections(comparison, examples or {}, small) if comparison else ()),
        *([_legend(names)] if named else []),
        *([f"<section>\n<h2>Before and after, on validation</h2>\n{starts}</section>"] if starts else []),
        *([f"<section>\n{runs}\n</section>"] if reports else []),
        *curve_sections(reports),
        *(query_sections(reports[0].findings, small) if len(reports) == 1 else ()),
    ]
    data = dict.fromkeys(each.findings.data for each in reports if each.findings is not None)
    note = f"on {', '.join(data)}" if data else "without figures on a test set"
    title = ", ".join(names)
    if comparison is not None:
        title, note = comparison.name, comparison.about()
    return html_page(f"openvse compare: {title}", "\n".join(sections), note=note, style=style)


def comparison_sections(
    comparison: Comparison, examples: Mapping[str, Sequence[AnsweredQueries]], small: _Small
) -> Iterator[str]:
    """Yield the table of the rows, and each row against the first with the queries on which they differ most."""
    name = letters(comparison)
    named = "".join(f"<dt>{letter}</dt><dd>{escape(row)}</dd>" for row, letter in name.items())
    problems = (line for line in comparison.warnings() if not line.startswith(LEAKAGE))
    notes = "".join(f"<li>{escape(line)}</li>" for line in (*row_remarks(comparison), *problems))
    yield (
        f'<section>\n<h2>Runs</h2>\n<dl class="facts">{named}</dl>\n{row_table(comparison).to_html()}\n'
        f'<ul class="notes">{notes}</ul>\n</section>'
    )
    for contrast in comparison.contrasts:
        first, second = name[contrast.first], name[contrast.second]
        verdicts = [contrast.differences[metric].verdict for metric in compared_metrics(comparison)]
        table = difference_table(comparison, contrast)
        html = table.to_html(partial(_verdict, verdicts, len(table.header) - 1))
        ends = f"{second} gains most", f"{second} loses most"
        lists = "\n".join(_direction(some, small, ends, (first, second)) for some in examples.get(contrast.second, ()))
        against = f"{escape(contrast.second)} against {escape(contrast.first)}"
        yield (
            f"<section>\n<h2>{second} against {first}: {against}</h2>\n{html}\n"
            f"{sign_table(comparison, contrast).to_html()}\n{lists}\n</section>"
        )


def _verdict(verdicts: Sequence[int], last: int, row: int, column: int) -> str:
    return {1: "better", -1: "worse", 0: ""}[verdicts[row]] if row >= 0 and column == last else ""


def _legend(labels: Iterable[str]) -> str:
    keys = "".join(
        f'<li><span class="key" style="background: {colour(number)}"></span>{escape(label)}</li>'
        for number, label in enumerate(labels)
    )
    return f'<ul class="legend">{keys}</ul>'


def _figures(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return the table of figures of a single run, with the notes below it. Empty if it was not evaluated."""
    if len(reports) != 1 or (findings := reports[0].findings) is None:
        return []
    about = [f"below a figure: its {CONFIDENCE:.0%} interval"] if findings.intervals else []
    lines = [*about, *(line for line in remarks(reports[0]) if line not in reports[0].leaks)]
    notes = "".join(f"<li>{escape(line)}</li>" for line in lines)
    names = shown_metrics(findings)
    return [
        f"<section>\n<h2>Figures</h2>\n{_table(reports[0].run.name, findings, names)}\n"
        f'<ul class="notes">{notes}</ul>\n{_published(findings, names)}</section>'
    ]


def _table(name: str, findings: Findings, names: Sequence[str]) -> str:
    """Return a table with a line for each metric, narrow enough for a phone, with intervals below the figures."""
    below = (f"\n{interval}" if interval else "" for interval in interval_cells(findings.intervals, names))
    own = [figure + interval for figure, interval in zip(metric_cells(findings.metrics, names), below, strict=True)]
    columns = [own, *(metric_cells(metrics, names) for metrics in findings.beside.values())]
    lines = [*zip(map(metric_title, names), *columns, strict=True)]
    kinds = ["", "run", *["beside"] * len(findings.beside)]
    return Table(["", name, *findings.beside], lines).to_html(lambda row, column: kinds[column], named=True)


def _published(findings: Findings, names: Sequence[str]) -> str:
    """Return a table of the published figures of other methods on the same data, a line for each source."""
    elsewhere = published_elsewhere(findings)
    known = [name for name in names if any(name in metrics for metrics in elsewhere.values())]
    if not known:
        return ""
    rows = [[source, *metric_cells(metrics, known)] for source, metrics in elsewhere.items()]
    table = Table(["", *map(metric_title, known)], rows).to_html(named=True)
    return (
        "<details><summary>Published figures of other methods on the same data</summary>\n"
        f'<div class="published">{table}</div></details>\n'
    )


def curve_sections(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return the sections that have curves to show."""
    training = [*_from_records(reports, "train"), *_from_records(reports, "validation")]
    return [
        *_section("Training", training, "Loss and speed over steps, validation over epochs."),
        *_section(
            "Diagnostics",
            [*_from_records(reports, "diagnostics")],
            "Numbers from the loss and its miner: for instance the number of negatives, alignment (mean distance of "
            "pairs) and uniformity (spread of all embeddings).",
        ),
        *_pooling(reports),
        *_probabilities(reports),
    ]


def _section(title: str, charts: Sequence[str], note: str) -> Iterator[str]:
    if charts:
        inside = "\n".join(charts)
        yield (
            f'<section>\n<h2>{title}</h2>\n<p class="about">{escape(note)}</p>\n'
            f'<div class="charts">\n{inside}\n</div>\n</section>'
        )


def _figure(title: str, chart: str) -> str:
    return f'<figure class="card"><figcaption>{escape(title)}</figcaption>\n{chart}\n</figure>'


_Line = tuple[str, Sequence[float], Sequence[float], int]
"""The name of a line, its positions, its values, and the number of its colour."""

_WIDE_RANGE = 300.0
_DOTS = 24


def _chart(lines: Sequence[_Line], x: str, y: str) -> str:
    """Return a line chart, over a logarithmic axis where the values differ by more than ``_WIDE_RANGE``.

    For example the loss of a run whose first epoch sums over all negatives.
    """

    def draw() -> Figure:
        figure = new_figure(COLUMN, 2.1)
        axes = figure.subplots()
        for name, places, values, number in lines:
            axes.plot(places, values, color=colour(number), marker="o" if len(places) <= _DOTS else "", label=name)
        axes.set_xlabel(x)
        axes.grid(axis="y", linewidth=0.4, alpha=0.4)
        every = [value for _, _, values, _ in lines for value in values]
        if min(every) > 0 and max(every) > _WIDE_RANGE * min(every):
            axes.set_yscale("log")
        return figure

    ends = "; ".join(f"{name} from {values[0]:.4g} to {values[-1]:.4g}" for name, _, values, _ in lines)
    return svg_element(draw, f"{y} over {x}: {ends}")


def _from_records(reports: Sequence[MeasuredReport], kind: str) -> Iterator[str]:
    """Yield a chart for each number that the runs have recorded, with a line for each run."""
    names = dict.fromkeys(name for each in reports if each.run.records for name in each.run.records.names(kind))
    by_epoch = kind == "validation"
    for name in _chosen([*names], kind):
        lines = [
            (each.run.name, series.epochs if by_epoch else series.steps, series.values, number)
            for number, each in enumerate(reports)
            if each.run.records and len((series := each.run.records.series(kind, name)).values) > (0 if by_epoch else 1)
        ]
        if lines:
            title = f"{metric_title(name)} (validation)" if by_epoch else _plain(name)
            yield _figure(title, _chart(lines, "epoch" if by_epoch else "step", title))


def _chosen(names: Sequence[str], kind: str) -> list[str]:
    """Return the numbers to show: of the validation only the most important, and the loss before its terms."""
    if kind == "validation":
        return [name for name in _VALIDATION if name in names] or list(names[:4])
    if kind == "train":
        terms = [name for name in names if name not in ("loss", *_TITLES)]
        # A loss of a single term is that term.
        return [name for name in ("loss", *(terms if len(terms) > 1 else ()), *reversed(_TITLES)) if name in names]
    return list(names)


def _pooling(reports: Sequence[MeasuredReport]) -> Iterator[str]:
    """Yield the learned pooling coefficients by the size of the set. A size has its own colour."""
    charts = []
    for each in reports:
        if each.run.records is None:
            continue
        for part, sizes in _by_part(each.run.records.curves(each.run.best_epoch)).items():
            lines = [
                (f"{size} elements", [float(place) for place in range(1, size + 1)], values, number)
                for number, (size, values) in enumerate(sizes.items())
            ]
            owner = f"{each.run.name}, " if len(reports) > 1 else ""
            chart = _chart(lines, "place of the element, largest first", "coefficient")
            chart += f"\n{_legend(name for name, *_ in lines)}"
            charts.append(_figure(f"{owner}{_SIDES.get(part, part)}", chart))
    yield from _section(
        "Learned pooling",
        charts,
        "The coefficient of each place after sorting, for several sizes of the set, at the best epoch. The mean has "
        "the same coefficient everywhere, and the maximum has 1 at the first place.",
    )


def _by_part(curves: Mapping[str, Sequence[float]]) -> dict[str, dict[int, Sequence[float]]]:
    by_part: dict[str, dict[int, Sequence[float]]] = {}
    for name, values in curves.items():
        if match := _COEFFICIENTS.match(name):
            by_part.setdefault(match["part"] or "pooling", {})[int(match["size"])] = values
    return by_part


def _probabilities(reports: Sequence[MeasuredReport]) -> Iterator[str]:
    """Yield the reliability of the runs' probabilities, if they have any."""
    charts = []
    for each in reports:
        reliability = each.findings.reliability if each.findings else None
        if reliability is not None and reliability.bins:
            error = f"expected calibration error {percent(reliability.expected_error)}"
            charts.append(_figure(each.run.name, svg_element(reliability.plot, error)))
    yield from _section(
        "Probabilities",
        charts,
        "The share of relevant hits, against the probability from the model. On the dashed line both are equal.",
    )


def _plain(name: str) -> str:
    """Return the name of a diagnostic in words: its term and direction, and the counted thing."""
    words = {"i2t": "image to text", "t2i": "text to image"}
    if name in _TITLES:
        return _TITLES[name]
    term, _, rest = name.rpartition(".")
    side, _, what = rest.partition("_")
    shown = f"{what.replace('_', ' ')}, {words[side]}" if side in words else rest.replace("_", " ")
    return f"{term}: {shown}" if term else shown


def query_sections(findings: Findings | None, small: _Small) -> Iterator[str]:
    """Yield the section of the best and the worst queries, if there are some to show."""
    if findings is not None and any(some.best or some.worst for some in findings.queries):
        inside = "\n".join(_direction(some, small) for some in findings.queries)
        yield f"<section>\n<h2>Best and worst queries</h2>\n{inside}\n</section>"


def _direction(
    some: AnsweredQueries, small: _Small, ends: tuple[str, str] = ("Best", "Worst"), rows: Sequence[str] = ()
) -> str:
    parts = [f"<h3>{escape(some.title)}</h3>"]
    for title, queries in zip(ends, (some.best, some.worst), strict=True):
        cards = "\n".join(f"<li>{_query_card(query, small, rows)}</li>" for query in queries)
        listed = f'<ol class="queries">\n{cards}\n</ol>' if queries else "<p>None.</p>"
        parts.append(f"<h4>{title}</h4>\n{listed}")
    return "\n".join(parts)


def _query_card(query: AnsweredQuery, small: _Small, rows: Sequence[str] = ()) -> str:
    """Return a query with its results: the first results of one model, or the first one of each row."""
    labels = [f"{row}'s {result}" for row, result in zip(rows, query.results, strict=True)] if rows else []
    answers = [*zip(query.answers, query.hits, labels or [""] * len(query.answers), strict=True)]
    result = "" if rows else f'<span class="result">{escape(query.results[0])}</span>'
    asked = f'<p class="asked">{escape(query.query.text)} {result}</p>'
    if any(shown.image is not None for shown, *_ in answers):
        frames = [_frame(shown, small, hit=hit, label=label) for shown, hit, label in answers]
        if query.right is not None:
            frames.append(_frame(query.right, small, label="right"))
        return f'{asked}<div class="frames">{"".join(frames)}</div>'
    listed = "ol" if len(answers) > 1 and not rows else "ul"
    texts = "".join(
        f"<li{' class=hit' if hit else ''}>{f'<b>{escape(label)}:</b> ' if label else ''}"
        f"{escape(shown.text)}{' ' + _TICK if hit else ''}</li>"
        for shown, hit, label in answers
    )
    right = f'<p class="right"><b>right:</b> {escape(query.right.text)}</p>' if query.right is not None else ""
    return f'<div class="pair">{_frame(query.query, small)}<div>{asked}<{listed}>{texts}</{listed}>{right}</div></div>'


def _frame(shown: Shown, small: _Small, *, hit: bool = False, label: str = "") -> str:
    uri = None if shown.image is None else small(shown.image)
    about = escape(shown.text, quote=True)
    inside = f'<img src="{uri}" alt="{about}">' if uri else f"<span>{about}: no image</span>"
    mark = " ".join(filter(None, (escape(label), _TICK if hit else "")))
    caption = f"<figcaption>{mark}</figcaption>" if mark else ""
    return f'<figure class="frame{" hit" if hit else ""}" title="{about}">{inside}{caption}</figure>'


_VALUES = ("before", "after", "difference", "interval")


def start_of(run: ReportedRun) -> Mapping[str, Any]:
    """Return a run's record of the model that it began from: ``name``, ``fingerprint`` and ``changes`` by metric.

    The name is the recipe's, which is clearer than the last part of a path.

    It is empty for a run without such a model. ``changes`` is empty until the run has finished.
    """
    written: object = None
    if run.named.folder is not None:
        with suppress(OSError, ValueError):
            written = read_json(run.named.folder / "before_after.json")
    stated = (run.recipe or {}).get("start")
    name = {"name": stated} if isinstance(stated, str) else {}
    if isinstance(written, Mapping) and isinstance(written.get("start"), Mapping):
        return {**written["start"], **name, "changes": written.get("metrics", {})}
    start = run.config.provenance.get("start")
    # A model of epoch 0 is the start itself, whose folder describes its own start.
    return {**start, **name} if isinstance(start, Mapping) and run.best_epoch != 0 else {}


def _start_table(run: ReportedRun, *, named: bool) -> str:
    start = start_of(run)
    changes = section(start, "changes")
    rows = [
        (metric_title(name), *_cells(changes[name]))
        for name in (*metric_names(), "accuracy")
        if isinstance(changes.get(name), Mapping) and all(key in changes[name] for key in _VALUES)
    ]
    if not rows:
        return ""
    heading = f"<h3>{escape(run.name)}</h3>\n" if named else ""
    lines = " No epoch was above it, so that the run kept it. After: the best epoch." if run.best_epoch == 0 else ""
    return (
        f"{heading}{Table(('', 'before', 'after', 'difference'), rows).to_html(named=True)}\n"
        f'<ul class="notes"><li>before: {escape(str(start.get("name", "")))}, the model '
        f"that the run began from.{lines}</li><li>below a difference: its {CONFIDENCE:.0%} interval, by a paired "
        f"bootstrap over images. An interval that holds 0 shows no difference</li></ul>\n"
    )


def _cells(change: Mapping[str, Any]) -> tuple[str, str, str]:
    low, high = change["interval"]
    difference = f"{change['difference']:+.1f}\n{low:+.1f} to {high:+.1f}"
    return f"{change['before']:.1f}", f"{change['after']:.1f}", difference


def _run_card(each: MeasuredReport, *, named: bool) -> str:
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd{' class=leaky' if leaky else ''}>{value}</dd>"
        for name, value, leaky in _facts(each)
        if value
    )
    heading, recipe = f"<h3>{escape(each.run.name)}</h3>" if named else "", ""
    if each.run.recipe is not None:
        text = dump_yaml(dict(each.run.recipe))
        recipe = f"<details><summary>The whole recipe</summary><pre>{escape(text)}</pre></details>"
    return f'<div class="card">{heading}<dl class="facts">{facts}</dl>{recipe}</div>'


def _facts(each: MeasuredReport) -> Iterator[tuple[str, str, bool]]:
    """Yield names and values (HTML) of facts, and whether one is about leakage."""
    run = each.run
    provenance = run.config.provenance
    data = section(provenance, "data")
    yield "Trained on", escape(_data(data)), False
    yield "Test images in training", *_leakage(each)
    yield "Licence of the data", escape(str(data.get("licence", ""))), False
    seed = "" if provenance.get("seed") is None else f", seed {provenance['seed']}"
    yield "Recipe", escape(f"{provenance['recipe']}{seed}") if provenance.get("recipe") else "", False
    start = start_of(run)
    name, fingerprint = (escape(str(start.get(key, ""))) for key in ("name", "fingerprint"))
    yield "Began from", f"{name} <code>{fingerprint}</code>" if start else "", False
    yield "Parts", escape(_parts(run.config.spec)), False
    yield "Weights", f"{each.parameters:,}, of which {each.trained:,} are learned", False
    yield "Model", f"<code>{escape(each.fingerprint)}</code>", False
    yield "Best epoch", escape(_epochs(run)), False
    seconds, most = (run.records.seconds(), run.records.memory()) if run.records else (None, None)
    took = "" if seconds is None else f"{timedelta(seconds=round(seconds))}, validation not counted"
    yield "Training time", took, False
    yield "Peak memory", "" if most is None else f"{most / 1e9:.2g} GB", False
    for name, value in _environment(run):
        yield name, escape(value), False
    if run.records is not None and run.records.unreadable:
        yield "Damaged records", f"{run.records.unreadable} line(s) of metrics.jsonl are left out", False
    if command := run.command():
        yield "Again", f"<code>{escape(command)}</code>", False


def _data(data: Mapping[str, Any]) -> str:
    splits = section(data, "splits")
    ordered = [*(split for split in SPLITS if split in splits), *(each for each in splits if each not in SPLITS)]
    counts = ", ".join(f"{splits[each]:,} {each}" for each in ordered if isinstance(splits[each], int))
    return f"{data.get('name', 'unknown data')}{f': {counts} images' if counts else ''}"


def _leakage(each: MeasuredReport) -> tuple[str, bool]:
    if each.findings is None:
        return "", False
    if each.leaks:
        return escape(each.leaks[0].partition(": ")[2]), True
    if not remembers_training(each.run.config.provenance):
        return "not known: the model does not remember its training images", False
    return "none found among those that could be checked", False


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
    return "; ".join([*towers, *others, *([f"width {spec['embed_dim']}"] if "embed_dim" in spec else [])])


def _epochs(run: ReportedRun) -> str:
    if run.records is None:
        return "" if run.best_epoch is None else str(run.best_epoch)
    first = next(iter(run.records.names("validation")), "")
    done = run.records.series("validation", first).epochs
    unfinished = run.named.unfinished()
    of = f" of {int(max(done))}" if done else ""
    return f"{run.best_epoch}{of}{' (the run is not finished)' if unfinished else ''}"


def _environment(run: ReportedRun) -> Iterator[tuple[str, str]]:
    sessions = run.records.of("environment") if run.records else []
    if not sessions:
        yield "openvse", str(run.config.provenance.get("openvse", ""))
        return
    last = sessions[-1]
    resumed = {1: "", 2: ", resumed once"}.get(len(sessions), f", resumed {len(sessions) - 1} times")
    yield "Started", str(sessions[0].get("started", "")) + resumed
    yield "Machine", ", ".join(str(last[key]) for key in ("device", "system", "precision") if last.get(key))
    yield "Software", ", ".join(f"{name} {last[name]}" for name in ("openvse", "torch", "python") if last.get(name))
    commits = dict.fromkeys(str(session["commit"]) for session in sessions if session.get("commit"))
    yield "Commit of openvse", ", ".join(commits)


def published_elsewhere(findings: Findings) -> dict[str, Metrics]:
    """Return the published figures for the data set of an evaluation, by their source.

    The figures of the run's recipe are in its own findings and not here. The name of a shipped recipe begins with its
    data set: ``vse_infinity/flickr30k_regions_bert`` is about ``flickr30k``.
    """
    published: dict[str, Metrics] = {}
    data, _, split = findings.data.partition("/")
    for name in list_recipes() if data and split == "test" else ():
        if name.partition("/")[2].startswith(f"{data}_"):
            published |= published_for(read_recipe(name), findings.size, findings.protocols)
    return {source: metrics for source, metrics in published.items() if source not in findings.beside}
