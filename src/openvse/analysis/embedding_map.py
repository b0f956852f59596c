"""A map of embeddings in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from openvse.analysis.opening import Embedded
from openvse.analysis.style import COLUMN, PAGE, blank, colour, new_figure
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = 400
"""How many images the map shows at most, each with one text: t-SNE takes long for many items."""


def require_sklearn() -> None:
    """Raise OpenVSEError if scikit-learn, which computes the map, is not installed."""
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError as error:
        raise OpenVSEError(
            "the map of embeddings needs scikit-learn: pip install 'openvse[map]', or leave --map out"
        ) from error


def draw_map(embedded: Sequence[Embedded], seed: int = 0) -> Figure:
    """Draw images and their first texts by t-SNE, a line between the two; distances between far points mean little."""
    columns = min(len(embedded), 2)
    lines = -(-len(embedded) // columns)
    size = PAGE / 2 if columns > 1 else COLUMN
    figure = new_figure(size * columns, size * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for axes, each in zip(grid.flat, embedded, strict=False):
        axes.set_visible(True)
        images, texts = _places(each, seed)
        for image, text in zip(images, texts, strict=True):
            axes.plot(*zip(image, text, strict=True), color="0.8", linewidth=0.3, zorder=1)
        axes.scatter(*images.T, s=5, color=colour(0), label="images", zorder=2)
        axes.scatter(*texts.T, s=5, color=colour(1), label="texts", zorder=2)
        axes.set_title(each.name)
        blank(axes)
        axes.legend(loc="best")
    return figure


def _places(embedded: Embedded, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of images and of the first text of each."""
    from sklearn.manifold import TSNE

    relevance = embedded.corpus.relevance
    _, first = np.unique(relevance.images, return_index=True)
    drawn = np.random.default_rng(seed).permutation(first)[:IMAGES]
    rows, columns = torch.from_numpy(relevance.images[drawn]), torch.from_numpy(relevance.texts[drawn])
    both = torch.cat([embedded.images.vectors[rows].mean(dim=1), embedded.texts.vectors[columns].mean(dim=1)])
    perplexity = min(30.0, max(1.0, (len(both) - 1) / 3))
    found = TSNE(perplexity=perplexity, random_state=seed, init="pca").fit_transform(both.numpy())
    return found[: len(drawn)], found[len(drawn) :]
