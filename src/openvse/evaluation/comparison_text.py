"""A comparison as text for a terminal of 80 columns, as Markdown, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from string import ascii_uppercase
from typing import Any

from openvse.evaluation.comparison import Comparison, Contrast
from openvse.evaluation.metrics import RECALL_AT
from openvse.evaluation.paired import POWER, Difference
from openvse.evaluation.report import metric_title
from openvse.output.documents import CONFIDENCE, markdown_table

SIDES = {"i2t": "images asking for texts", "t2i": "texts asking for images", "questions": "questions"}
_RECALLS = tuple(f"{side}_r{k}" for side in ("i2t", "t2i") for k in RECALL_AT)
_COLUMNS = 8


def letters(comparison: Comparison) -> dict[str, str]:
    """Return a letter for each row, or a number if there are more rows than letters."""
    many = len(comparison.rows) > len(ascii_uppercase)
    return {
        row.name: str(number + 1) if many else ascii_uppercase[number]
        for number, row in enumerate(comparison.rows)
    }


def shown_metrics(comparison: Comparison) -> list[str]:
    """Return the metrics that tables show: RSUM and recalls, or whatever else has resamples."""
    there = comparison.contrasts[0].differences
    return [name for name in ("rsum", *_RECALLS) if name in there] or [
        name for name in there if not name.endswith("meanr")
    ]


def row_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table of rows; a line of spreads follows a row of several runs."""
    names = shown_metrics(comparison)
    lines = []
    for name, row in zip(letters(comparison).values(), comparison.rows, strict=True):
        lines.append([name, str(len(row.runs)), *(f"{row.mean[metric]:.1f}" for metric in names)])
        if row.spread:
            lines.append(["", "", *(f"±{row.spread[metric]:.1f}" for metric in names)])
    return ["", "seeds", *map(metric_title, names)], lines


def difference_table(comparison: Comparison, contrast: Contrast) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table of differences."""
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    lines = []
    for metric in shown_metrics(comparison):
        found = contrast.differences[metric]
        low, high = found.interval
        cells = f"{found.change:+.1f}", f"{low:+.1f} to {high:+.1f}", f"{found.smallest:.1f}"
        lines.append([metric_title(metric), *cells, verdict(found, first, second)])
    return [f"{second} - {first}", "difference", f"{CONFIDENCE:.0%} interval", "would show", ""], lines


def sign_table(comparison: Comparison, contrast: Contrast) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table of the sign tests."""
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    lines = [
        [SIDES.get(side, side), f"{found.better:,}", f"{found.worse:,}", f"{found.equal:,}", _p(found.p)]
        for side, found in contrast.signs.items()
    ]
    return ["queries", f"{second} better", f"{first} better", "equal", "p"], lines


def verdict(found: Difference, first: str, second: str) -> str:
    """Return which of two rows is better, or that the test set does not show it."""
    return {1: f"{second} is better", -1: f"{first} is better", 0: "not shown"}[found.verdict]


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader needs to know about the figures, a sentence or two at a time."""
    yield (
        f"interval: paired bootstrap over images, {comparison.resamples:,} resamples, seed {comparison.seed}; "
        f'"not shown" means that it holds 0'
    )
    yield (
        f"would show: the smallest true difference that such a test set shows in {POWER:.0%} of cases; "
        f'a "not shown" says nothing about smaller ones'
    )
    counts = [len(row.runs) for row in comparison.rows]
    if max(counts) == 1:
        yield (
            "one run a row: an interval says how far other test images would move the difference, not how far "
            "another seed would"
        )
    else:
        yield "±: standard deviation over the seeds of a row, which the bootstrap draws again, too"
        if min(counts) == 1:
            yield "a row of one run has no spread: an interval leaves out how far another seed would move it"
    if "t2i" in comparison.contrasts[0].signs:
        yield "p: exact sign test; the texts of an image are not independent, so their p is too small"
    if len(comparison.contrasts) > 1:
        yield f"{len(comparison.contrasts)} comparisons: intervals and p are not corrected for their number"


def comparison_text(comparison: Comparison) -> str:
    """Return the comparison for a terminal: rows by letter, their metrics, and each row against the first."""
    blocks = ["\n".join(f"{letter}  {name}" for name, letter in letters(comparison).items())]
    blocks.append(f"on {_size(comparison)}")
    header, lines = row_table(comparison)
    blocks += [
        aligned(
            [
                [*header[:2], *header[at : at + _COLUMNS]],
                *([*line[:2], *line[at : at + _COLUMNS]] for line in lines),
            ]
        )
        for at in range(2, len(header), _COLUMNS)
    ]
    for contrast in comparison.contrasts:
        for header, lines in (difference_table(comparison, contrast), sign_table(comparison, contrast)):
            blocks.append(aligned([header, *lines]))
    blocks.append("\n".join(_wrapped(line) for line in (*remarks(comparison), *_problems(comparison))))
    return "\n\n".join(blocks)


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as a page in Markdown."""
    sections = [f"# Comparison on {_size(comparison)}"]
    sections.append("\n".join(f"- {letter}: {name}" for name, letter in letters(comparison).items()))
    sections.append(markdown_table(*row_table(comparison)))
    for contrast in comparison.contrasts:
        sections.append(f"## {contrast.second} against {contrast.first}")
        sections.append(markdown_table(*difference_table(comparison, contrast)))
        sections.append(markdown_table(*sign_table(comparison, contrast)))
    sections.append("\n".join(f"- {line}" for line in (*remarks(comparison), *_problems(comparison))))
    return "\n\n".join(sections) + "\n"


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values; docs/json.md describes them."""
    return {
        "data": comparison.name,
        "size": dict(comparison.size),
        "folds": comparison.folds,
        "seed": comparison.seed,
        "resamples": comparison.resamples,
        "rows": [
            {
                "name": row.name,
                "runs": [
                    {
                        "source": run.source,
                        "model": run.model,
                        "metrics": run.metrics,
                        "warnings": [*run.warnings],
                    }
                    for run in row.runs
                ],
                "mean": row.mean,
                "spread": row.spread,
            }
            for row in comparison.rows
        ],
        "contrasts": [
            {
                "first": each.first,
                "second": each.second,
                "differences": {
                    name: {**asdict(found), "interval": [*found.interval], "shown": found.verdict != 0}
                    for name, found in each.differences.items()
                },
                "signs": {side: asdict(found) for side, found in each.signs.items()},
            }
            for each in comparison.contrasts
        ],
        "problems": [*comparison.problems],
    }


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal: the first column to the left, the others to the right, words to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 or (column == last and not lines[0][last]) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def counted(size: Mapping[str, int]) -> str:
    """Return numbers of items, such as "1,000 images, 5,000 texts"."""
    return ", ".join(f"{count:,} {what}" for what, count in size.items())


def _size(comparison: Comparison) -> str:
    folds = f", mean of {comparison.folds} folds" if comparison.folds > 1 else ""
    return f"{comparison.name}: {counted(comparison.size)}{folds}"


def _problems(comparison: Comparison) -> Iterator[str]:
    yield from comparison.problems
    yield from (warning for row in comparison.rows for run in row.runs for warning in run.warnings)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}" if value > 0 else "< 1e-300"


def _wrapped(line: str) -> str:
    from textwrap import fill

    return fill(line, 79, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
