"""The one style of all figures, which need the extra ``analysis``: sizes, type, colours, and SVG for web pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from re import sub
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from openvse.errors import importing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def import_figure() -> type[Figure]:
    """Return matplotlib's figure class. Raise OpenVSEError if matplotlib is not installed."""
    with importing("the plot needs matplotlib", "analysis"):
        from matplotlib.figure import Figure
    return Figure


COLUMN = 3.4
"""The width of a figure for one column of a paper, in inches."""

PAGE = 7.0
"""The width of a figure for both columns, in inches."""

DPI = 300

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4A9E", "#8A6D3B")
"""Colours of lines and bars, which people with a colour vision deficiency can tell apart (after Okabe and Ito)."""

RIGHT, WRONG, QUIET = "#1B7F4B", "#B3261E", "#6B6F76"

HEAT = "viridis"
"""The colour map of matrices and heat maps, whose brightness rises evenly."""

LINES = ("-", "--", ":", "-.")

_LINE = 0.25  # inches of a legend of one line


@contextmanager
def styled() -> Iterator[None]:
    """Set type and lines for all figures drawn and saved inside the block. Raise OpenVSEError without matplotlib."""
    import_figure()
    from cycler import cycler
    from matplotlib import rc_context

    settings: dict[Any, Any] = {  # matplotlib's type is a list of all keys
        "font.family": "sans-serif",
        "font.size": 8.0,
        "axes.titlesize": 8.0,
        "axes.labelsize": 8.0,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=COLOURS),
        "xtick.labelsize": 7.0,
        "ytick.labelsize": 7.0,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "legend.fontsize": 7.0,
        "legend.frameon": False,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "savefig.dpi": DPI,
        "svg.hashsalt": "openvse",
        "svg.fonttype": "none",
    }
    with rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, with its size in inches. Raise OpenVSEError if matplotlib is not installed."""
    return import_figure()(figsize=(width, height), layout="constrained")


def svg_element(draw: Callable[[], Figure], about: str) -> str:
    """Return a figure as an SVG element for a web page, whose light or dark colours its axes and words follow."""
    written = StringIO()
    with styled():
        figure = draw()
        figure.patch.set_visible(False)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        figure.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    start = f'<svg class="chart" role="img" aria-label="{escape(about)}"'
    svg = start + svg[svg.index("<svg") + len("<svg") :].rstrip()
    # What a page does not need, and the names of groups, which are the same in all figures.
    svg = sub(r"""(?s)<metadata>.*?</metadata>| xmlns(?::xlink)?="[^"]*"|(?<=<g) id="[^"]*"|xlink:(?=href)""", "", svg)
    return sub("#(?:000000|262626|cccccc)", "currentColor", svg)


def colour(number: int) -> str:
    """Return the colour of a line or bar by its number. After the last colour they repeat."""
    return COLOURS[number % len(COLOURS)]


def line_style(number: int) -> str:
    """Return the dashes of a line by its number, for more lines than there are colours."""
    return LINES[number // len(COLOURS) % len(LINES)]


def lines_of(text: str, width: int, most: int = 4) -> str:
    """Return a text in lines of at most ``width`` letters, and cut it after ``most`` lines."""
    broken = wrap(text, width) or [""]
    if len(broken) > most:
        broken = [*broken[: most - 1], f"{broken[most - 1][: width - 2]} …"]
    # A dollar sign would begin a formula.
    return "\n".join(broken).replace("$", r"\$")


def marked(right: bool | None) -> tuple[str, str]:
    """Return the mark and the colour of a right or wrong answer, without a mark if unknown."""
    return {True: ("✓ ", RIGHT), False: ("✗ ", WRONG), None: ("", "black")}[right]


def legend_below(figure: Figure, *axes: Axes, columns: int = 4) -> None:
    """Put one legend of some axes under the figure, in at most so many columns as fit.

    Long labels are broken, and the figure grows by the height of the legend beyond its first line.
    """
    named: dict[str, Artist] = {}
    for each in axes:
        named |= dict(zip(*reversed(each.get_legend_handles_labels()), strict=True))
    labels = [*named]
    room = figure.get_figwidth() * figure.dpi
    longest = max(map(len, labels), default=0)
    # First with fewer columns, then with shorter lines.
    tries = [(count, longest) for count in range(min(columns, len(labels)), 0, -1)]
    tries += [(1, width) for width in range(longest - 1, 9, -1)]
    for count, width in tries:
        shown = [lines_of(label, width, most=9) for label in labels]
        legend = figure.legend([*named.values()], shown, loc="outside lower center", ncols=count)
        needed = legend.get_window_extent()
        if needed.width <= room:
            figure.set_figheight(figure.get_figheight() + max(0.0, needed.height / figure.dpi - _LINE))
            return
        legend.remove()


def blank(axes: Axes) -> None:
    """Remove ticks and frame, for axes that hold an image or a text."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
