"""A comparison as one web page that holds its images itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from openvse.corpus.splits import LEAKAGE
from openvse.evaluation.comparison import (
    Comparison,
    RowContrast,
    compared_metrics,
    difference_table,
    letters,
    remarks,
    row_table,
    sign_table,
)
from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery, Shown
from openvse.media.packed import ImageFile
from openvse.output.documents import html_page
from openvse.output.thumbnails import thumbnail

Small = Callable[[ImageFile], str | None]


def comparison_page(comparison: Comparison, examples: Mapping[str, Sequence[AnsweredQueries]]) -> str:
    """Return an HTML page with all tables, and with the queries on which rows differ most.

    Args:
        examples: the gains and losses of each row against the first, by the name of the row.
    """
    small: Small = cache(thumbnail)
    style = files("openvse.evaluation").joinpath("comparison.css").read_text(encoding="utf-8")
    warnings = comparison.warnings()
    sections = [
        *(f'<p class="leak">{escape(line)}</p>' for line in warnings if line.startswith(LEAKAGE)),
        _rows(comparison, [line for line in warnings if not line.startswith(LEAKAGE)]),
        *(_contrast(comparison, each, examples.get(each.second, ()), small) for each in comparison.contrasts),
    ]
    title = f"openvse compare: {comparison.name}"
    return html_page(title, "\n".join(sections), note=comparison.about(), style=style)


def _rows(comparison: Comparison, problems: Sequence[str]) -> str:
    named = "".join(
        f"<dt>{letter}</dt><dd>{escape(name)}</dd>" for name, letter in letters(comparison).items()
    )
    notes = "".join(f"<li>{escape(line)}</li>" for line in (*remarks(comparison), *problems))
    return (
        f'<section>\n<h2>Runs</h2>\n<dl class="rows">{named}</dl>\n{row_table(comparison).to_html()}\n'
        f'<ul class="notes">{notes}</ul>\n</section>'
    )


def _contrast(
    comparison: Comparison, contrast: RowContrast, examples: Iterable[AnsweredQueries], small: Small
) -> str:
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    table = difference_table(comparison, contrast)
    verdicts = [contrast.differences[metric].verdict for metric in compared_metrics(comparison)]

    def mark(row: int, column: int) -> str:
        is_verdict = row >= 0 and column == len(table.header) - 1
        return {1: "better", -1: "worse", 0: ""}[verdicts[row]] if is_verdict else ""

    lists = "\n".join(_examples(each, first, second, small) for each in examples)
    return (
        f"<section>\n<h2>{second} against {first}: {escape(contrast.second)} against {escape(contrast.first)}</h2>\n"
        f"{table.to_html(mark)}\n"
        f"{sign_table(comparison, contrast).to_html()}\n{lists}\n</section>"
    )


def _examples(examples: AnsweredQueries, first: str, second: str, small: Small) -> str:
    parts = [f"<h3>{escape(examples.title)}</h3>"]
    for title, some in (
        (f"{second} gains most", examples.best),
        (f"{second} loses most", examples.worst),
    ):
        cards = "\n".join(f"<li>{_card(each, first, second, small)}</li>" for each in some)
        listed = f'<ol class="examples">\n{cards}\n</ol>' if some else "<p>No query.</p>"
        parts.append(f"<h4>{title}</h4>\n{listed}")
    return "\n".join(parts)


def _card(example: AnsweredQuery, first: str, second: str, small: Small) -> str:
    labels = [
        f"{name}'s {escape(result)}" for name, result in zip((first, second), example.results, strict=True)
    ]
    assert example.right is not None
    every = (example.right, *example.answers), ("right", *labels), (False, *example.hits)
    answers = [*zip(*every, strict=True)]
    if example.right.image is not None:
        frames = "".join(_figure(shown, label, small, hit) for shown, label, hit in answers)
        return f'<p class="asked">{escape(example.query.text)}</p>\n<div class="three">{frames}</div>'
    # An image with texts beside it: the right one, and what each model has found.
    cells = "".join(
        f"<dt>{label}</dt><dd{' class=hit' if hit else ''}>{escape(shown.text)}</dd>"
        for shown, label, hit in answers
    )
    image = _figure(example.query, escape(example.query.text), small, False)
    return f'<div class="beside">{image}<dl>{cells}</dl></div>'


def _figure(shown: Shown, label: str, small: Small, hit: bool) -> str:
    uri = None if shown.image is None else small(shown.image)
    about = escape(shown.text)
    inside = (
        f'<img src="{uri}" alt="{about}" loading="lazy">' if uri else f"{about}: the image cannot be read"
    )
    mark = " \N{CHECK MARK}" if hit else ""
    return (
        f'<figure><div class="frame{" hit" if hit else ""}">{inside}</div>'
        f"<figcaption>{label}{mark}</figcaption></figure>"
    )
