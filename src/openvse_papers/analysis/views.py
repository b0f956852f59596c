"""Models with several embeddings of an item: which of them win, and how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from openvse.errors import OpenVSEError
from openvse.output.figures import HEAT, PAGE, colour, lines_of, new_figure
from openvse.output.table import Table
from openvse.types import EmbeddingSet
from openvse_papers.analysis.opening import Embedded, warnings_of
from openvse_papers.analysis.result import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "views"
_PAIRS = 4096


@dataclass(frozen=True)
class Views:
    """The views of one side of one model.

    Attributes:
        shares: the share of the relevant pairs whose score comes from each view.
        similarity: the mean cosine of each two views of an item.
        circular_variance: ``1 - |mean of the views|`` of an item, averaged: 0 if the views are equal (DivE).
    """

    model: str
    side: str
    shares: Float[np.ndarray, "K"]
    similarity: Float[np.ndarray, "K K"]
    circular_variance: float

    @property
    def mean_similarity(self) -> float:
        """The mean cosine of two different views of an item."""
        count = len(self.similarity)
        return float((self.similarity.sum() - np.trace(self.similarity)) / (count * (count - 1)))


@torch.inference_mode()
def measure_views(embedded: Embedded) -> list[Views]:
    """Return the views of each side that has several (MV-VSE, Fig. 4b to d).

    A pair is won by the two embeddings with the largest cosine. Views that tie share the pair.
    """
    relevance = embedded.corpus.relevance
    sides = {"image": embedded.images, "text": embedded.texts}
    won: dict[str, np.ndarray] = {side: np.zeros(each.vectors.shape[1]) for side, each in sides.items()}
    for start in range(0, len(relevance.images), _PAIRS):
        rows = torch.from_numpy(relevance.images[start : start + _PAIRS])
        columns = torch.from_numpy(relevance.texts[start : start + _PAIRS])
        images, texts = embedded.images[rows], embedded.texts[columns]
        products = images.vectors @ texts.vectors.transpose(1, 2)
        real = images.mask.unsqueeze(2) & texts.mask.unsqueeze(1)
        products = products.masked_fill(~real, -torch.inf)
        best = products == products.amax(dim=(1, 2), keepdim=True)
        for side, other in (("image", 2), ("text", 1)):
            wins = best.any(dim=other).double()
            won[side] += (wins / wins.sum(dim=1, keepdim=True)).sum(dim=0).numpy()
    statistics = [
        Views(embedded.name, side, won[side] / len(relevance.images), *_spread(each))
        for side, each in sides.items()
        if each.vectors.shape[1] > 1
    ]
    if not statistics:
        raise OpenVSEError(
            f"{embedded.name} has one embedding of each item, and no views: name a model with multi_view, pie_net or "
            f"slot_attention"
        )
    return statistics


def _spread(embedded: EmbeddingSet) -> tuple[Float[np.ndarray, "K K"], float]:
    """Return the mean cosines of two views and the circular variance. Missing embeddings do not count."""
    vectors = torch.nn.functional.normalize(embedded.vectors.double(), dim=2)
    both = (embedded.mask.unsqueeze(1) & embedded.mask.unsqueeze(2)).double()
    products = vectors @ vectors.transpose(1, 2) * both
    mean = products.sum(dim=0) / both.sum(dim=0).clamp(min=1)
    lengths = products.sum(dim=(1, 2)).clamp(min=0).sqrt() / embedded.mask.sum(dim=1)
    return mean.numpy(), float(1 - lengths.mean())


def analyze_views(embedded: Sequence[Embedded]) -> Analysis:
    """Compare how often each view wins, and how similar the views of an item are."""
    views = [each for one in embedded for each in measure_views(one)]
    shares = [(v.model, v.side, view + 1, float(share)) for v in views for view, share in enumerate(v.shares)]
    cosines = [
        (v.model, v.side, row + 1, column + 1, float(value))
        for v in views
        for (row, column), value in np.ndenumerate(v.similarity)
    ]
    shown = [(v, float(v.shares.max()), float(v.shares.min())) for v in views]
    summary = [
        (v.model, v.side, len(v.shares), most, least, v.mean_similarity, v.circular_variance)
        for v, most, least in shown
    ]
    columns = ("model", "side", "views", "largest share", "smallest share", "cosine", "circular variance")
    return Analysis(
        NAME,
        Table(columns, summary),
        {
            "shares": Table(("model", "side", "view", "share"), shares),
            "similarity": Table(("model", "side", "view", "other view", "cosine"), cosines),
        },
        {"": lambda: _draw(views)},
        warnings=warnings_of(embedded),
    )


def _draw(views: Sequence[Views]) -> Figure:
    columns = min(len(views), 4)
    lines = -(-len(views) // columns)
    figure = new_figure(min(PAGE, 1.9 * columns + 0.6), 3.6 * lines)
    grid = figure.subplots(2 * lines, columns, squeeze=False)
    for axes in grid.flat[:]:
        axes.set_visible(False)
    image, least = None, min(0.0, *(float(each.similarity.min()) for each in views))
    for number, each in enumerate(views):
        line, column = divmod(number, columns)
        bars, heat = grid[2 * line, column], grid[2 * line + 1, column]
        bars.set_visible(True)
        heat.set_visible(True)
        names = [str(view + 1) for view in range(len(each.shares))]
        drawn = bars.bar(names, 100 * each.shares, color=[colour(view) for view in range(len(names))])
        bars.bar_label(drawn, fmt="%.0f", fontsize=7 if len(names) <= 6 else 5, padding=1)
        bars.set(ylim=(0, 112), title=f"{lines_of(each.model, 24)}\n{each.side}s", xlabel="view")
        if column == 0:
            bars.set_ylabel("pairs won (%)")
        image = heat.imshow(each.similarity, cmap=HEAT, vmin=least, vmax=1)
        _label_cells(heat, each.similarity, names)
    if image is not None:
        figure.colorbar(image, ax=grid[1::2, :].ravel().tolist(), label="cosine", shrink=0.8)
    return figure


def _label_cells(axes: Axes, values: Float[np.ndarray, "K K"], names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="view", ylabel="view")
    if len(names) <= 6:
        for (row, column), value in np.ndenumerate(values):
            ink = "black" if value > 0.6 else "white"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=7, color=ink)
