"""Learned pooling coefficients by the size of the set, beside mean, max and k-max pooling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from openvse.aggregators import GPO
from openvse.aggregators.learned import FSPool
from openvse.errors import OpenVSEError
from openvse.functional import interpolate
from openvse.model.two_tower import TwoTower
from openvse.output.figures import PAGE, QUIET, colour, legend_below, line_style, new_figure
from openvse.output.table import Table
from openvse_papers.analysis.result import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "coefficients"
SIZES = (10, 20, 36, 49)
"""Sizes of short and long captions, of 36 regions, and of a 7 x 7 grid."""
K = 5
"""The k of the k-max pooling shown beside learned ones."""


@dataclass(frozen=True)
class Curve:
    """The coefficients of one pooling for sets of ``size`` elements, largest element first.

    They are means over the dimensions if each has its own. ``pool`` is "" if the pooling is the aggregator.
    """

    model: str
    side: str
    pool: str
    size: int
    values: tuple[float, ...]

    @property
    def label(self) -> str:
        """The name of the curve in a legend."""
        return f"{self.model}, {self.pool}" if self.pool else self.model

    def effective(self) -> float:
        """Return how many equal coefficients would be as concentrated: ``(sum |c|)^2 / sum c^2``. 1 for max pooling."""
        squares = sum(value * value for value in self.values)
        return sum(map(abs, self.values)) ** 2 / squares if squares else 0.0


def k_max(size: int, k: int) -> list[float]:
    """Return the coefficients of the mean of the k largest of ``size`` values. 1 is max pooling, ``size`` the mean."""
    taken = min(k, size)
    return [1 / taken] * taken + [0.0] * (size - taken)


def learned_curves(towers: Mapping[str, TwoTower], sizes: Sequence[int]) -> list[Curve]:
    """Return the coefficients that the poolings of some models have learned (VSE-infinity, Fig. 5)."""
    curves = []
    for name, model in towers.items():
        own = [
            Curve(name, side, place, size, tuple(values))
            for side, place, pool in _poolings(model)
            for size, values in _coefficients(pool, sizes).items()
        ]
        if not own:
            kinds = ", ".join(type(side.aggregator).__name__ for side in (model.image, model.text))
            raise OpenVSEError(
                f"{name} has no learned coefficients (its aggregators: {kinds}): name a model with gpo or fs_pool"
            )
        curves += own
    return curves


def analyze_coefficients(towers: Mapping[str, TwoTower], sizes: Sequence[int] = SIZES) -> Analysis:
    """Compare learned coefficients with mean, max and k-max pooling."""
    curves = learned_curves(towers, sizes)
    rows = [
        (c.model, c.side, c.pool, c.size, at + 1, value, 1 / c.size, float(at == 0), k_max(c.size, K)[at])
        for c in curves
        for at, value in enumerate(c.values)
    ]
    header = ("model", "side", "pool", "size", "position", "learned", "mean", "max", f"k_max_{K}")
    summary = [
        (c.label, c.side, c.size, c.values[0], sum(c.values[:K]), c.values[-1], c.effective()) for c in curves
    ]
    columns = ("model", "side", "size", "largest", f"top {K} together", "smallest", "effective number")
    return Analysis(
        NAME,
        Table(columns, summary),
        {"": Table(header, rows)},
        {"": lambda: _draw(curves)},
    )


def _poolings(model: TwoTower) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield side, place and module of every pooling whose coefficients depend only on the size of the set."""
    for side, tower in (("image", model.image), ("text", model.text)):
        for place, module in tower.aggregator.named_modules():
            if isinstance(module, GPO | FSPool):
                yield side, _place(place), module


def _place(path: str) -> str:
    """Return the place of a pooling in words: ``views.0`` is view 1."""
    words = path.replace("views.", "view ").split(".")
    return ", ".join(
        f"view {int(word.removeprefix('view ')) + 1}" if word.startswith("view ") else word
        for word in words
        if word
    )


@torch.inference_mode()
def _coefficients(pool: nn.Module, sizes: Sequence[int]) -> Mapping[int, list[float]]:
    wanted = torch.tensor([*sizes], device=next(pool.parameters()).device)
    if isinstance(pool, GPO):
        table = pool.coefficients(wanted)
    else:
        assert isinstance(pool, FSPool)
        table = interpolate(pool.knots, wanted)
    shared = table.float().view(*table.shape[:2], -1).mean(dim=2).cpu()
    return {size: shared[row, :size].tolist() for row, size in enumerate(sizes)}


def _draw(curves: Sequence[Curve]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    sides = [side for side in ("image", "text") if any(curve.side == side for curve in curves)]
    sizes = list(dict.fromkeys(curve.size for curve in curves))
    labels = list(dict.fromkeys(curve.label for curve in curves))
    figure = new_figure(PAGE, 1.7 * len(sides) + 0.5)
    grid = figure.subplots(len(sides), len(sizes), squeeze=False)
    for row, side in enumerate(sides):
        for column, size in enumerate(sizes):
            axes = grid[row, column]
            chosen = [curve for curve in curves if (curve.side, curve.size) == (side, size)]
            _draw_panel(axes, chosen, labels, size)
            axes.set_title(f"{side}s, {size} elements")
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            if row == len(sides) - 1:
                axes.set_xlabel("position, largest first")
        grid[row, 0].set_ylabel("coefficient")
    legend_below(figure, *grid.flat, columns=5)
    return figure


def _draw_panel(axes: Axes, chosen: Sequence[Curve], labels: Sequence[str], size: int) -> None:
    positions = range(1, size + 1)
    top = max(1 / min(K, size), *(max(curve.values) for curve in chosen)) if chosen else 1.0
    low = min(0.0, *(min(curve.values) for curve in chosen)) if chosen else 0.0
    axes.step(
        positions, k_max(size, K), where="mid", color=QUIET, linewidth=0.9, linestyle=":", label=f"{K}-max"
    )
    axes.axhline(1 / size, color=QUIET, linewidth=0.9, linestyle="--", label="mean")
    # Max pooling leaves the panel at the top, because its height of 1 would push the other curves onto the axis.
    axes.plot([1, 1], [0, 2], color=QUIET, linewidth=0.9, alpha=0.6, label="max (1 at position 1)")
    for curve in chosen:
        number = labels.index(curve.label)
        axes.plot(
            positions, curve.values, color=colour(number), linestyle=line_style(number), label=curve.label
        )
    axes.set(xlim=(0.0, size + 1), ylim=(1.15 * low, 1.15 * min(top, 1.0)))
