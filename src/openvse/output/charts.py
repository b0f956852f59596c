"""Line charts as SVG inside a web page: they follow its light or dark colours and need no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

CHART_STYLE = """
:root { --s0: #0b66b5; --s1: #c2500a; --s2: #0b7a5c; --s3: #a8407f; --s4: #7a6500; --s5: #5b4fc4; }
@media (prefers-color-scheme: dark) {
  :root { --s0: #6db3f2; --s1: #f59a5b; --s2: #4fce9f; --s3: #ee94c8; --s4: #d8c04f; --s5: #b3a7ff; }
}
.chart { width: 100%; height: auto; display: block; overflow: visible; }
.chart text { fill: var(--quiet); font-size: 11px; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.chart circle { stroke: var(--card); stroke-width: 1; }
.chart .plain { stroke: var(--quiet); stroke-dasharray: 3 4; }
""" + "".join(
    f".s{n} {{ stroke: var(--s{n}); }} circle.s{n} {{ fill: var(--s{n}); }} .k{n} {{ background: var(--s{n}); }}\n"
    for n in range(6)
)
"""The CSS of the charts; ``k0`` to ``k5`` colour the keys of a legend."""

COLOURS = 6
WIDE_RANGE = 300.0

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360.0, 220.0, 46.0, 8.0, 10.0, 38.0
_POINTS = 240
_DOTS = 24
_TICKS = 4


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        label: what it shows, for people who point at it or cannot see it.
        x: the positions; finite, ascending.
        y: the values; finite.
        colour: the number of its colour; None draws a thin dashed line for comparison.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int | None = 0


def line_chart(lines: Sequence[Line], *, x: str, y: str, bounds: tuple[float, float] | None = None) -> str:
    """Return an SVG element with the lines; long lines are thinned by the means of consecutive points.

    The vertical axis is logarithmic if the values are positive and differ by more than a factor of ``WIDE_RANGE``, as
    those of a loss do whose first epoch sums over all negatives.

    Args:
        lines: at least one line with at least one point.
        x: the label of the horizontal axis.
        y: what the vertical axis shows, which is read aloud and not drawn: the caption of the figure says it.
        bounds: the lowest and highest value of the vertical axis; None takes those of the lines.
    """
    drawn = [_thinned(line) for line in lines if len(line.x)]
    values = [value for line in drawn for value in line.y]
    wide = bounds is None and min(values) > 0 and max(values) > WIDE_RANGE * min(values)
    across = _Scale([value for line in drawn for value in line.x], _LEFT, _WIDTH - _RIGHT)
    kind = _LogScale if wide else _Scale
    up = kind(bounds or values, _HEIGHT - _BOTTOM, _TOP, rounded=True)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{escape(_summary(drawn, x, y))}">'
    ]
    for tick in up.ticks():
        place = up(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{place:.1f}" y2="{place:.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 6:g}" y="{place + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in across.ticks():
        parts.append(
            f'<text x="{across(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16:g}" text-anchor="middle">{_number(tick)}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 5:g}" text-anchor="middle">{escape(x)}</text>')
    parts += [_drawn(line, across, up) for line in drawn]
    return "\n".join([*parts, "</svg>"])


class _Scale:
    """Maps values to places; ``rounded`` widens the range to round numbers."""

    def __init__(self, values: Sequence[float], start: float, stop: float, *, rounded: bool = False) -> None:
        low, high = min(values), max(values)
        if low == high:
            room = abs(low) / 10 or 1.0
            low, high = low - room, high + room
        self._step = _round_step((high - low) / _TICKS)
        if rounded:
            low, high = math.floor(low / self._step) * self._step, math.ceil(high / self._step) * self._step
        self._low, self._high, self._start, self._stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) / (self._high - self._low) * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """Return round numbers in the range."""
        first = math.ceil(self._low / self._step - 1e-9)
        last = math.floor(self._high / self._step + 1e-9)
        return [number * self._step for number in range(first, last + 1)]


class _LogScale(_Scale):
    """Maps positive values to places by their logarithms, between powers of ten."""

    def __init__(self, values: Sequence[float], start: float, stop: float, *, rounded: bool = False) -> None:
        super().__init__([0.0, 1.0], start, stop, rounded=rounded)
        self._low, self._high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def __call__(self, value: float) -> float:
        return super().__call__(math.log10(value))

    def ticks(self) -> list[float]:
        """Return the powers of ten in the range."""
        return [10.0**power for power in range(int(self._low), int(self._high) + 1)]


def _round_step(step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= step * 0.999)


def _thinned(line: Line) -> Line:
    size = math.ceil(len(line.x) / _POINTS)
    if size <= 1:
        return line
    starts = range(0, len(line.x), size)
    means = [
        [sum(part) / len(part) for part in (values[start : start + size] for start in starts)]
        for values in (line.x, line.y)
    ]
    return Line(line.label, means[0], means[1], line.colour)


def _drawn(line: Line, across: _Scale, up: _Scale) -> str:
    style = "plain" if line.colour is None else f"s{line.colour % COLOURS}"
    places = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = ""
    if line.colour is not None and len(places) <= _DOTS:
        dots = "".join(
            f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(line.label)}: {_number(value)}'
            f"</title></circle>"
            for (x, y), value in zip(places, line.y, strict=True)
        )
    return f'<polyline class="{style}" points="{joined}"><title>{escape(line.label)}</title></polyline>{dots}'


def _summary(lines: Sequence[Line], x: str, y: str) -> str:
    ends = "; ".join(f"{line.label} from {_number(line.y[0])} to {_number(line.y[-1])}" for line in lines)
    return f"{y} over {x}: {ends}"


def _number(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.0e}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
