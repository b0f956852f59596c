"""The figure of attention and view maps over images, and the analysis that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.analysis.attention import ImageMap
from openvse.analysis.hits import small_image
from openvse.analysis.result import Analysis, Table
from openvse.analysis.style import PAGE, QUIET, RIGHT, WRONG, blank, lines_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "attention"
PIXELS = 336
"""The longer side of an image in the figure."""

_HEAT = "inferno"


def analyze_attention(maps: Sequence[ImageMap]) -> Analysis:
    """Draw maps over their images, a row for each image of a model, and list all weights.

    Args:
        maps: the maps, those of one image of one model next to each other.
    """
    header = ("model", "image", "view", "kind", "part", "left", "top", "right", "bottom", "weight")
    rows = [
        (m.model, m.image_id, m.view, m.kind, part + 1, *box, weight)
        for m in maps
        for part, (box, weight) in enumerate(zip(m.boxes.tolist(), m.weights.tolist(), strict=True))
    ]
    captions = [
        (m.model, m.image_id, m.view, m.caption, "" if m.right is None else m.right, float(_share(m)))
        for m in maps
    ]
    columns = ("model", "image", "view", "caption", "right", "share of the top tenth")
    words = [
        (m.model, m.image_id, m.view, at + 1, word, weight)
        for m in maps
        for at, (word, weight) in enumerate(m.words)
    ]
    tables = {"": Table(header, rows), "captions": Table(columns, captions)}
    if words:
        tables["words"] = Table(("model", "image", "view", "position", "word", "weight"), words)
    return Analysis(NAME, Table(columns, captions), tables, {"": lambda: _draw(maps)})


def heat_of(
    weights: Float[Tensor, "N"], boxes: Float[Tensor, "N 4"], height: int, width: int
) -> Float[np.ndarray, "H W"]:
    """Return the weight at each pixel: the mean of the parts that cover it, 0 at the least and 1 at the most of them.

    Args:
        weights: one number for each part.
        boxes: the places of the parts as fractions of width and height.
        height: H, in pixels.
        width: W, in pixels.
    """
    least, most = float(weights.min()), float(weights.max())
    # Weights that differ by rounding only are even.
    differ = most - least > 1e-3 * abs(most)
    scaled = (weights - least) / (most - least) if differ else torch.full_like(weights, 0.5)
    total, count = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    edges = boxes * torch.tensor([width, height, width, height])
    for value, box in zip(scaled.tolist(), edges.round().int().tolist(), strict=True):
        left, top, right, bottom = box
        inside = (slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1)))
        total[inside] += value
        count[inside] += 1
    covered = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return covered.astype(np.float32)


def _share(one: ImageMap) -> float:
    """Return how much of the weight is on the tenth of the parts with the most; cosines count from the least."""
    weights = one.weights - one.weights.min() if one.kind == "cosine" else one.weights
    top = weights.topk(max(1, round(len(weights) / 10))).values.sum()
    return float(top / weights.sum()) if float(weights.sum()) > 0 else 0.0


def _groups(maps: Sequence[ImageMap]) -> list[list[ImageMap]]:
    """Return the maps of each image of each model; those of different questions have rows of their own."""
    groups: list[list[ImageMap]] = []
    for one in maps:
        last = groups[-1][-1] if groups else None
        begins = one.view.endswith(" 1") or one.view == "embedding"
        if last is None or (last.model, last.image_id) != (one.model, one.image_id) or begins:
            groups.append([])
        groups[-1].append(one)
    return groups


def _draw(maps: Sequence[ImageMap]) -> Figure:
    rows = _groups(maps)
    columns = 1 + max(map(len, rows))
    # With one map for each image, two images share a line.
    across = max(1, 4 // columns)
    images = [small_image(row[0].path, PIXELS) for row in rows]
    tallest = max(image.shape[0] / image.shape[1] for image in images)
    height = tallest * PAGE / (columns * across) + (0.72 if columns * across <= 4 else 1.0)
    figure = new_figure(PAGE, height * -(-len(rows) // across) + 0.3)
    grid = figure.subplots(-(-len(rows) // across), columns * across, squeeze=False)
    for axes in grid.flat:
        blank(axes)
    models = {one.model for one in maps}
    for number, row in enumerate(rows):
        line, start = number // across, number % across * columns
        pixels = images[number]
        cells = grid[line, start : start + columns]
        cells[0].imshow(pixels)
        cells[0].set_title(row[0].model if len(models) > 1 else "image")
        letters = round(120 / (columns * across))
        # What all maps of an image share stands once, below the image.
        shared = len(row) > 1 and len({one.caption for one in row}) == 1
        if shared:
            _say(cells[0], row[0], letters, most=9)
        for axes, one in zip(cells[1:], row, strict=False):
            _draw_map(axes, pixels, one, letters)
            axes.set_title(one.view + ("\n" if columns * across > 4 else " ") + f"({one.kind})")
            if not shared:
                _say(axes, one, letters)
    _draw_scale(figure, grid.ravel().tolist())
    return figure


def _draw_scale(figure: Figure, under: list[Axes]) -> None:
    """Say what the colours mean: each map is scaled by itself."""
    from matplotlib.cm import ScalarMappable

    drawn = figure.colorbar(
        ScalarMappable(cmap=_HEAT), ax=under, orientation="horizontal", shrink=0.4, aspect=60, pad=0.01
    )
    drawn.set_ticks([0, 1], labels=["least", "most of each map"])
    drawn.ax.tick_params(length=0, labelsize=6.5)


def _draw_map(axes: Axes, pixels: np.ndarray, one: ImageMap, letters: int) -> None:
    height, width = pixels.shape[:2]
    grey = pixels.mean(axis=2)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
    heat = heat_of(one.weights, one.boxes, height, width)
    axes.imshow(_smooth(heat, one) if one.tiled else heat, cmap=_HEAT, alpha=0.55, vmin=0, vmax=1)
    if one.words:
        top = sorted(one.words, key=lambda word: -word[1])[:3]
        listed = ", ".join(f"{word} {weight:.2f}" for word, weight in top)
        axes.text(
            0.5,
            0.02,
            lines_of(listed, letters),
            transform=axes.transAxes,
            ha="center",
            va="bottom",
            fontsize=6,
            color="white",
            bbox={"facecolor": QUIET, "edgecolor": "none", "pad": 1.5, "alpha": 0.8},
        )


def _say(axes: Axes, one: ImageMap, letters: int, most: int = 4) -> None:
    """Write the caption of a map below it, in green if it is right and in red if it is wrong."""
    mark = {True: "✓ ", False: "✗ ", None: ""}[one.right]
    ink = {True: RIGHT, False: WRONG, None: "black"}[one.right]
    text = (mark + one.caption).replace(" %", "\N{NO-BREAK SPACE}%")
    axes.set_xlabel(lines_of(text, letters, most), color=ink, fontsize=7)


def _smooth(heat: Float[np.ndarray, "H W"], one: ImageMap) -> Float[np.ndarray, "H W"]:
    """Blend the cells of a grid, whose borders mean nothing."""
    from PIL import Image

    side = round(len(one.weights) ** 0.5)
    height, width = heat.shape
    small = Image.fromarray(heat).resize((side, side), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).clip(0, 1)
