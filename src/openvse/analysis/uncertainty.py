"""Models whose embeddings are distributions: which images and captions are the most uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from openvse.analysis.opening import Embedded
from openvse.output.figures import PAGE, colour, new_figure
from openvse.output.table import Table
from openvse.runtime.arrays import uncertainties

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Uncertain = Mapping[str, Float[np.ndarray, "B"]]
"""The sum of the variances of each item, by the side: image or text."""


def uncertain_items(embedded: Sequence[Embedded]) -> dict[str, Uncertain]:
    """Return the uncertainties of a corpus by the names of the models whose embeddings are distributions."""
    return {
        each.name: {
            "image": uncertainties(each.images.vectors[:, 0].numpy(), of_texts=False),
            "text": uncertainties(each.texts.vectors[:, 0].numpy(), of_texts=True),
        }
        for each in embedded
        if each.model.similarity.reads_gaussians
    }


def percentiles(values: Float[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
    """Return which of 100 equal parts each item is in, from 0 for the smallest values to 99."""
    places = np.empty(len(values), np.int64)
    places[values.argsort(kind="stable")] = np.arange(len(values))
    return places * 100 // max(1, len(values))


def uncertain_table(embedded: Sequence[Embedded], uncertainty: Mapping[str, Uncertain]) -> Table:
    """Return all images and captions of each model, the most uncertain first."""
    corpus = embedded[0].corpus
    items = {"image": corpus.image_ids, "text": corpus.captions}
    rows = [
        (name, side, items[side][at], float(values[at]))
        for name, sides in uncertainty.items()
        for side, values in sides.items()
        for at in np.argsort(-values, kind="stable")
    ]
    return Table(("model", "kind", "item", "uncertainty"), rows)


def draw_uncertainty(
    uncertainty: Mapping[str, Uncertain], recalls: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Draw how the uncertainties are spread, and the recall of captions from certain to uncertain.

    Args:
        uncertainty: of each model.
        recalls: for each model, R@10 of groups of captions by the percentiles of their uncertainty.
    """
    figure = new_figure(PAGE, 2.5)
    spread, recall = figure.subplots(1, 2)
    for number, (name, sides) in enumerate(uncertainty.items()):
        for style, (side, values) in zip(("-", "--"), sides.items(), strict=True):
            share = np.linspace(0, 100, len(values))
            spread.plot(np.sort(values), share, style, color=colour(number), label=f"{name}, {side}s")
        groups = recalls[name]
        recall.plot(range(len(groups)), [*groups.values()], "o-", color=colour(number), label=name)
        recall.set_xticks(range(len(groups)), [*groups])
    spread.set_xscale("log")
    spread.set_xlabel("uncertainty (sum of the variances)")
    spread.set_ylabel("items with at most this (%)")
    spread.legend()
    recall.set_xlabel("percentile of the caption's uncertainty")
    recall.set_ylabel("R@10, texts asking for images")
    recall.set_ylim(0, 103)
    return figure
