"""The sweeps of the papers: the k-max grid, the number of views, the weight of the bound, and its ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from openvse.analysis.result import Analysis, Cell, Table
from openvse.analysis.style import COLUMN, HEAT, colour, new_figure
from openvse.analysis.sweep import Setting, Swept
from openvse.errors import OpenVSEError
from openvse.evaluation.metrics import RECALL_AT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID, VIEWS, WEIGHT, ABLATION = "k_max_grid", "num_views", "view_weight", "view_ablation"
_RECALLS = tuple(f"{side}_r{k}" for side in ("i2t", "t2i") for k in RECALL_AT)


def grid_settings(image_k: Sequence[int], text_k: Sequence[int]) -> list[Setting]:
    """Return k-max pooling with each pair of k (VSE-infinity, Fig. 6)."""
    return [
        Setting(
            f"image_{i}_text_{t}",
            (float(i), float(t)),
            tuple(f"{side}.aggregator={{name: k_max, k: {k}}}" for side, k in (("image", i), ("text", t))),
        )
        for i in image_k
        for t in text_k
    ]


def view_settings(numbers: Sequence[int]) -> list[Setting]:
    """Return each number of views of the image (MV-VSE, Fig. 4a)."""
    return [Setting(f"views_{n}", (float(n),), (f"image.aggregator.num_views={n}",)) for n in numbers]


def weight_settings(weights: Sequence[float]) -> list[Setting]:
    """Return each lambda: the contrast of the best view has weight lambda, the bound 1 - lambda (MV-VSE, Fig. 4b)."""
    return [
        Setting(
            f"lambda_{w:g}",
            (float(w),),
            (f"objective.ranking.weight={w:g}", f"objective.bound.weight={1 - w:g}"),
        )
        for w in weights
    ]


def ablation_settings() -> list[Setting]:
    """Return the rows of MV-VSE's Table 3."""
    best = ("objective.ranking.weight=1.0", "objective.bound.weight=0.0")
    bound = ("objective.ranking.weight=0.0", "objective.bound.weight=1.0")
    return [
        Setting("Tri", (0.0,), (*best, "image.aggregator.num_views=1")),
        Setting("Max", (1.0,), best),
        Setting("Avg", (2.0,), (*bound, "objective.bound.name=multi_view_average")),
        Setting("Up", (3.0,), bound),
        Setting("full", (4.0,), ("objective.ranking.weight=0.7", "objective.bound.weight=0.3")),
    ]


def parse_numbers(text: str, option: str) -> list[float]:
    """Read numbers with commas between them.

    Raises:
        OpenVSEError: it is not such a list, or a number is given twice.
    """
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not np.isfinite(numbers).all():
        raise OpenVSEError(f"{option} is {text!r}: give numbers with commas between, such as 1,5,20")
    if len({*numbers}) < len(numbers):
        raise OpenVSEError(f"{option} is {text!r}: give each number once")
    return numbers


def parse_counts(text: str, option: str) -> list[int]:
    """Read whole numbers of at least 1 with commas between them; see ``parse_numbers``."""
    numbers = parse_numbers(text, option)
    if any(number < 1 or number != int(number) for number in numbers):
        raise OpenVSEError(f"{option} is {text!r}: give whole numbers of 1 or more")
    return [int(number) for number in numbers]


def parse_seeds(text: str, option: str) -> list[int]:
    """Read whole numbers of at least 0 with commas between them; see ``parse_numbers``."""
    numbers = parse_numbers(text, option)
    if any(number < 0 or number != int(number) for number in numbers):
        raise OpenVSEError(f"{option} is {text!r}: give whole numbers of 0 or more, such as 0,1,2")
    return [int(number) for number in numbers]


def parse_weights(text: str, option: str) -> list[float]:
    """Read numbers from 0 to 1 with commas between them; see ``parse_numbers``."""
    numbers = parse_numbers(text, option)
    if not all(0 <= number <= 1 for number in numbers):
        raise OpenVSEError(f"{option} is {text!r}: give numbers from 0 to 1, such as 0,0.5,1")
    return numbers


def sweep_table(found: Sequence[Swept], axes: Sequence[str]) -> Table:
    """Return one row for each setting: its recalls and RSUM, the spread over seeds, and the similarity of views."""
    header = (*axes, *_RECALLS, "rsum", "spread of rsum", "seeds", "cosine of two views")
    rows: list[tuple[Cell, ...]] = [
        (
            *((each.setting.name,) if axes == ("setting",) else map(_plain, each.setting.at)),
            *(each.mean(metric) for metric in _RECALLS),
            each.mean(),
            _spread(each),
            len(each.seeds),
            float(np.mean(each.views)) if each.views else "",
        )
        for each in found
    ]
    return Table(header, rows)


def _spread(each: Swept) -> Cell:
    """Return the standard deviation of RSUM over the seeds; "" for one seed, of which nobody knows it."""
    return each.spread() if len(each.seeds) > 1 else ""


def _plain(place: float) -> Cell:
    return int(place) if place == int(place) else place


def _summary(found: Sequence[Swept]) -> Table:
    best = max(found, key=lambda each: each.mean())
    rows = [(each.setting.name, each.mean(), _spread(each), "best" if each is best else "") for each in found]
    return Table(("setting", "rsum", "spread", ""), rows)


def analyze_grid(found: Sequence[Swept], split: str) -> Analysis:
    """Draw RSUM over the k of both sides as a heat map."""
    table = sweep_table(found, ("k of images", "k of texts"))
    return Analysis(GRID, _summary(found), {"": table}, {"": lambda: _draw_grid(found, split)})


def analyze_line(name: str, found: Sequence[Swept], label: str, split: str) -> Analysis:
    """Draw RSUM, and the similarity of views where there are some, over one setting."""
    table = sweep_table(found, (label,))
    return Analysis(name, _summary(found), {"": table}, {"": lambda: _draw_line(found, label, split)})


def analyze_ablation(found: Sequence[Swept], split: str) -> Analysis:
    """Draw RSUM for each row of the ablation, and print its recalls."""
    table = sweep_table(found, ("setting",))
    shown = Table(table.header[:8], [row[:8] for row in table.rows])
    return Analysis(ABLATION, shown, {"": table}, {"": lambda: _draw_points(found, split)})


def _draw_grid(found: Sequence[Swept], split: str) -> Figure:
    images = sorted({each.setting.at[0] for each in found})
    texts = sorted({each.setting.at[1] for each in found})
    values = np.full((len(images), len(texts)), np.nan)
    for each in found:
        values[images.index(each.setting.at[0]), texts.index(each.setting.at[1])] = each.mean()
    figure = new_figure(COLUMN, 0.42 * len(images) + 1.1)
    axes = figure.subplots()
    drawn = axes.imshow(values, cmap=HEAT, aspect="auto")
    axes.set_xticks(range(len(texts)), [f"{k:g}" for k in texts])
    axes.set_yticks(range(len(images)), [f"{k:g}" for k in images])
    axes.set_xlabel("k of texts")
    axes.set_ylabel("k of images")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    best = np.nanmax(values)
    for (row, column), value in np.ndenumerate(values):
        ink, weight = "black" if value > middle else "white", "bold" if value == best else "normal"
        axes.text(
            column, row, f"{value:.1f}", ha="center", va="center", fontsize=6.5, color=ink, weight=weight
        )
    figure.colorbar(drawn, ax=axes, label=f"RSUM on {split}{_of_seeds(found)}")
    return figure


def _draw_line(found: Sequence[Swept], label: str, split: str) -> Figure:
    figure = new_figure(COLUMN, 2.3)
    axes = figure.subplots()
    places = [each.setting.at[0] for each in found]
    spread = [each.spread() for each in found]
    axes.errorbar(
        places, [each.mean() for each in found], yerr=spread if any(spread) else None, fmt="o-", capsize=2
    )
    axes.set_xlabel(label)
    axes.set_ylabel(f"RSUM on {split}", color=colour(0))
    _say_bars(axes, found)
    seen = [(each.setting.at[0], float(np.mean(each.views))) for each in found if each.views]
    if len(seen) > 1:
        other = axes.twinx()
        other.plot(*zip(*seen, strict=True), "s--", color=colour(1))
        other.set_ylabel("cosine of two views", color=colour(1))
        # On the whole scale, so that views which are nearly the same look so.
        other.set_ylim(min(0.0, *(cosine for _, cosine in seen)), 1.05)
        other.spines["right"].set_visible(True)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    return figure


def _draw_points(found: Sequence[Swept], split: str) -> Figure:
    figure = new_figure(COLUMN, 2.3)
    axes = figure.subplots()
    means, spread = [each.mean() for each in found], [each.spread() for each in found]
    names = [each.setting.name for each in found]
    # The differences are small against the sum. So these are points: bars would have to begin at 0.
    axes.errorbar(names, means, yerr=spread if any(spread) else None, fmt="o", capsize=2, color=colour(0))
    for at, (mean, deviation) in enumerate(zip(means, spread, strict=True)):
        above = (at, mean + deviation)
        axes.annotate(
            f"{mean:.1f}", above, (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=7
        )
    axes.margins(x=0.15, y=0.25)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_xlabel("objective")
    axes.set_ylabel(f"RSUM on {split}")
    _say_bars(axes, found)
    return figure


def _say_bars(axes: Axes, found: Sequence[Swept]) -> None:
    """Say above a figure what its error bars are."""
    if len(found[0].seeds) > 1:
        axes.set_title(f"mean and standard deviation of {len(found[0].seeds)} seeds", fontsize=7)


def _of_seeds(found: Sequence[Swept]) -> str:
    count = len(found[0].seeds)
    return f", mean of {count} seeds" if count > 1 else ""
