"""The sections of a report with curves: loss, validation, diagnostics, learned pooling, and probabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from openvse.evaluation.report import metric_title
from openvse.output.charts import COLOURS, Line, line_chart
from openvse.output.documents import percent
from openvse.report.measure import MeasuredReport
from openvse.report.records import Series

_VALIDATION = ("rsum", "i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "accuracy")
_COEFFICIENTS = re.compile(r"(?P<part>.*?)\.?coefficients_(?P<size>\d+)$")
_SIDES = {"image": "images", "text": "texts"}
_TITLES = {"images_per_s": "items per second", "learning_rate": "learning rate"}


def curve_sections(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return the sections that have curves to show."""
    training = [*_from_records(reports, "train"), *_from_records(reports, "validation")]
    return [
        *_section("Training", training, "Loss and speed over steps, validation over epochs."),
        *_section(
            "Diagnostics",
            [*_from_records(reports, "diagnostics")],
            "What the loss and its miner report: for instance the number of negatives, alignment (mean distance of "
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


def _from_records(reports: Sequence[MeasuredReport], kind: str) -> Iterator[str]:
    """Yield a chart for each number that the runs have recorded, with a line for each run."""
    names = dict.fromkeys(
        name for each in reports if each.run.records for name in each.run.records.names(kind)
    )
    by_epoch = kind == "validation"
    for name in _chosen([*names], kind):
        lines = [
            _line(each, number, each.run.records.series(kind, name), by_epoch=by_epoch)
            for number, each in enumerate(reports)
            if each.run.records
        ]
        if lines := [line for line in lines if len(line.x) > (0 if by_epoch else 1)]:
            title = f"{metric_title(name)} (validation)" if by_epoch else _plain(name)
            yield _figure(title, line_chart(lines, x="epoch" if by_epoch else "step", y=title))


def _chosen(names: Sequence[str], kind: str) -> list[str]:
    """Return the numbers to show: of the validation only the most important, and the loss before its terms."""
    if kind == "validation":
        return [name for name in _VALIDATION if name in names] or list(names[:4])
    if kind == "train":
        terms = [name for name in names if name not in ("loss", *_TITLES)]
        # A loss of a single term is that term.
        return [
            name for name in ("loss", *(terms if len(terms) > 1 else ()), *reversed(_TITLES)) if name in names
        ]
    return list(names)


def _line(each: MeasuredReport, number: int, series: Series, *, by_epoch: bool) -> Line:
    return Line(each.run.name, series.epochs if by_epoch else series.steps, series.values, number)


def _pooling(reports: Sequence[MeasuredReport]) -> Iterator[str]:
    """Yield the learned pooling coefficients by the size of the set; a size has its own colour."""
    charts = []
    for each in reports:
        if each.run.records is None:
            continue
        curves = each.run.records.curves(each.run.best_epoch)
        for part, sizes in _by_part(curves).items():
            lines = [
                Line(
                    f"{size} elements",
                    [float(place) for place in range(1, size + 1)],
                    values,
                    number % COLOURS,
                )
                for number, (size, values) in enumerate(sizes.items())
            ]
            owner = f"{each.run.name}, " if len(reports) > 1 else ""
            keys = "".join(
                f'<li><span class="key k{line.colour}"></span>{escape(line.label)}</li>' for line in lines
            )
            chart = line_chart(lines, x="place of the element, largest first", y="coefficient")
            charts.append(
                _figure(f"{owner}{_SIDES.get(part, part)}", f'{chart}\n<ul class="legend">{keys}</ul>')
            )
    yield from _section(
        "Learned pooling",
        charts,
        "The coefficient of each place after sorting, for several sizes of the set, at the best epoch. The mean has "
        "the same coefficient everywhere, and the maximum has 1 at the first place.",
    )


def _by_part(curves: Mapping[str, Sequence[float]]) -> dict[str, dict[int, Sequence[float]]]:
    found: dict[str, dict[int, Sequence[float]]] = {}
    for name, values in curves.items():
        if match := _COEFFICIENTS.match(name):
            found.setdefault(match["part"] or "pooling", {})[int(match["size"])] = values
    return found


def _probabilities(reports: Sequence[MeasuredReport]) -> Iterator[str]:
    """Yield how far the probabilities of the runs hold, for those that know any."""
    charts = []
    for number, each in enumerate(reports):
        reliability = each.findings.reliability if each.findings else None
        if reliability is None or not reliability.bins:
            continue
        lines = [
            Line("as it should be", [0.0, 1.0], [0.0, 1.0], None),
            Line(
                each.run.name,
                [bin_.probability for bin_ in reliability.bins],
                [bin_.relevant for bin_ in reliability.bins],
                number,
            ),
        ]
        chart = line_chart(lines, x="probability", y="share of relevant hits", bounds=(0.0, 1.0))
        owner = f"{each.run.name}: " if len(reports) > 1 else ""
        title = (
            f"{owner}share of relevant hits, expected calibration error {percent(reliability.expected_error)}"
        )
        charts.append(_figure(title, chart))
    yield from _section(
        "Probabilities",
        charts,
        "How many hits are relevant, beside the probability that the model gives them. The dashed line is where both "
        "are equal.",
    )


def _plain(name: str) -> str:
    """Return the name of a diagnostic in words: its term and direction, and what it counts."""
    words = {"i2t": "image to text", "t2i": "text to image"}
    if name in _TITLES:
        return _TITLES[name]
    term, _, rest = name.rpartition(".")
    side, _, what = rest.partition("_")
    shown = f"{what.replace('_', ' ')}, {words[side]}" if side in words else rest.replace("_", " ")
    return f"{term}: {shown}" if term else shown
