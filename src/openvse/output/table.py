"""Tables for people and for programs: text, Markdown, LaTeX, HTML, CSV and JSON from the same rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from textwrap import wrap
from typing import Any, TypeAlias

from openvse.errors import OpenVSEError, message_of
from openvse.files import whole_characters

Cell: TypeAlias = str | int | float | bool
Rows: TypeAlias = Iterable[Sequence[Cell]]

COLUMNS = 80
"""The width of a terminal."""

_GAP = "  "
_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
_FORMULA = re.compile(r"[=@]|[+-](?![\d.])")
_SIGNED = re.compile(r"[+-]\d+\.\d")
_WORD = re.compile(r"[^\W\d_].*[^\W\d_]")


@dataclass(frozen=True)
class Table:
    """A table. Text and Markdown show numbers with a few digits. CSV and JSON keep all of them.

    Attributes:
        rows: the lines. Each has one cell for each column. A cell may have a second line, for small print.
        strong: the numbers of the rows that Markdown shows in bold, from 0.
        small: the numbers of the rows that LaTeX shows in small type, such as intervals.
        ruled: the numbers of the rows above which LaTeX draws a line.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    strong: frozenset[int] = frozenset()
    small: frozenset[int] = frozenset()
    ruled: frozenset[int] = frozenset()

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Cell]]) -> Table:
        """Return a table of columns by their names. All columns have the same number of cells."""
        return cls((*columns,), [*zip(*columns.values(), strict=True)])

    def to_text(self) -> str:
        """Return the table for a terminal: words to the left, numbers to the right.

        Long cells are broken between words. A table that is still too wide is cut into several, one below the other,
        and each begins with the first column.
        """
        lines = [[*self.header], *self._shown()]
        columns = [_Column.of([line[number] for line in lines]) for number in range(len(self.header))]
        return "\n\n".join(_text(some, COLUMNS) for some in _blocks(columns, COLUMNS))

    def to_markdown(self, digits: int = 3) -> str:
        """Return the table as Markdown, with the columns after the first aligned to the right."""
        rows = [
            [f"**{cell}**" if cell else "" for cell in row] if number in self.strong else row
            for number, row in enumerate(self._shown(digits))
        ]
        lines = [self.header, ["---"] + ["---:"] * (len(self.header) - 1), *rows]
        safe = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
        return "\n".join("| " + " | ".join(line) + " |" for line in safe)

    def to_latex(self, notes: Iterable[str] = ()) -> str:
        r"""Return a ``tabular`` for the package booktabs, below notes as comments."""
        lines = [
            *(f"% {' '.join(note.split())}" for note in notes),
            rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
        ]
        lines += [r"\toprule", _latex_line(map(_for_latex, self.header)), r"\midrule"]
        for number, (name, *figures) in enumerate(self._shown()):
            cells = [_figure_for_latex(cell) for cell in figures]
            if number in self.small:
                cells = [rf"{{\scriptsize {cell.replace(' to ', '--')}}}" if cell else "" for cell in cells]
            lines += [r"\midrule"] * (number in self.ruled)
            lines.append(_latex_line([_for_latex(name), *cells]))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def to_html(self, mark: Callable[[int, int], str] = lambda row, column: "", *, named: bool = False) -> str:
        """Return a ``table`` inside a ``div`` of the class "wide", which scrolls on a narrow screen.

        A cell gets the class that ``mark`` returns for its row, which is -1 for the header, and its column.
        """

        def cell(tag: str, text: str, row: int, column: int) -> str:
            is_name = named and column == 0 and row >= 0
            start = '<th scope="row"' if is_name else f"<{tag}"
            first, _, small = escape(text).partition("\n")
            styled = f' class="{kind}"' if (kind := mark(row, column)) else ""
            below = f"<small>{small}</small>" if small else ""
            return f"{start}{styled}>{first}{below}</{'th' if is_name else tag}>"

        def line(tag: str, cells: Sequence[str], row: int) -> str:
            return f"<tr>{''.join(cell(tag, text, row, column) for column, text in enumerate(cells))}</tr>"

        body = "\n".join(line("td", row, number) for number, row in enumerate(self._shown()))
        head = line("th", self.header, -1)
        return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'

    def to_csv(self) -> str:
        """Return the table as CSV, with all digits of its numbers. An apostrophe keeps text from being a formula."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([f"'{each}" if _FORMULA.match(str(each)) else each for each in row] for row in self.rows)
        return whole_characters(text.getvalue())  # names of files need not be UTF-8

    def to_json(self) -> list[dict[str, Cell]]:
        """Return one object for each row."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]

    def _shown(self, digits: int = 3) -> list[list[str]]:
        return [[shown(cell, digits) for cell in row] for row in self.rows]


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a ``pandas.DataFrame`` of rows by their columns. Raise OpenVSEError if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise OpenVSEError(f"a data frame needs pandas ({message_of(error)}): pip install pandas") from error
    return pandas.DataFrame(list(rows))


def shown(cell: Cell, digits: int = 3) -> str:
    """Return a cell for readers: "yes" or "no", and ``digits`` digits after the point."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.{digits}f}" if isinstance(cell, float) else whole_characters(str(cell))


@dataclass(frozen=True)
class _Column:
    """A column of a text: its cells, its name first, and its smallest and largest number of letters."""

    cells: Sequence[str]
    least: int
    most: int
    left: bool

    @classmethod
    def of(cls, cells: Sequence[str]) -> _Column:
        words = [word for cell in cells for word in cell.split()]
        # A cell without a word is a number or an interval.
        figures = not any(_WORD.search(cell.replace(" to ", " ")) for cell in cells[1:])
        numbers = [line for cell in cells[1:] if figures for line in cell.split("\n")]
        least = max(map(len, [*words, *numbers]), default=0)
        return cls(cells, least, max(map(len, [line for cell in cells for line in cell.split("\n")])), not figures)


def _blocks(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Return the columns in groups that fit when their cells are broken. Each group begins with the first column."""
    first, *others = columns
    groups: list[list[_Column]] = [[first]]
    for column in others:
        needed = sum(each.least + len(_GAP) for each in (*groups[-1], column)) - len(_GAP)
        if needed > width and len(groups[-1]) > 1:
            groups.append([first])
        groups[-1].append(column)
    return groups


def _text(columns: Sequence[_Column], width: int) -> str:
    """Return some columns as text. While they are too wide, the widest that can be broken loses a letter."""
    widths = [column.most for column in columns]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        if not (able := [n for n, column in enumerate(columns) if widths[n] > column.least]):
            break
        widths[max(able, key=lambda n: widths[n])] -= 1
    lines = []
    for row in zip(*(column.cells for column in columns), strict=True):
        broken = [_broken(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        for number in range(max(map(len, broken))):
            parts = [cell[number] if number < len(cell) else "" for cell in broken]
            lines.append(
                _GAP.join(
                    part.ljust(wide) if column.left or at == 0 else part.rjust(wide)
                    for at, (part, wide, column) in enumerate(zip(parts, widths, columns, strict=True))
                ).rstrip()
            )
    return "\n".join(lines)


def _broken(cell: str, width: int) -> list[str]:
    broken = partial(wrap, width=width, break_long_words=False, break_on_hyphens=False)
    return [part for line in cell.split("\n") for part in ([line] if len(line) <= width else broken(line) or [""])]


def _for_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text.replace("\n", " "))


def _figure_for_latex(text: str) -> str:
    """Return a figure, with mathematical signs."""
    return _SIGNED.sub(r"$\g<0>$", _for_latex(text)).replace("±", r"$\pm$").replace("< ", "$<$ ")


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
