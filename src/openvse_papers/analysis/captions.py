"""How much the captions of one image differ, by any text model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int

from openvse.aggregators.simple import Mean
from openvse.corpus import Corpus
from openvse.encoders.projections import NoProjection
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import OpenVSEError
from openvse.functional import pad
from openvse.model.tower import Tower
from openvse.model.two_tower import TwoTower, embed
from openvse.output.figures import COLUMN, colour, legend_below, new_figure
from openvse.output.table import Table
from openvse.runtime.arrays import directions, embeds_gaussians
from openvse.types import EmbeddingSet
from openvse_papers.analysis.result import Analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "captions"
BINS = np.linspace(-0.5, 1.0, 61)
_BATCH = 128

Texts = Mapping[str, EmbeddingSet]


def embed_captions(model: str, captions: Sequence[str]) -> EmbeddingSet:
    """Embed captions by a model that ``transformers_text`` supports: the mean of its token states, at unit length."""
    width = TransformersText(embed_dim=1, model=model, fine_tune=False).feature_dim
    encoder = TransformersText(
        embed_dim=width, model=model, fine_tune=False, projection=NoProjection, size_augmentation="none"
    )
    tower = Tower(encoder, Mean(input_dim=width, embed_dim=width))
    tokens = encoder.tokenize(captions)
    order = np.argsort([len(ids) for ids in tokens], kind="stable")
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    return embed(tower, ((chosen, pad([tokens[at] for at in chosen])) for chosen in batches), "cpu")


def embed_by_towers(towers: Mapping[str, TwoTower], captions: Sequence[str]) -> dict[str, EmbeddingSet]:
    """Embed captions by the text side of each model."""
    texts = {}
    for name, model in towers.items():
        found = model.encode_text(list(captions))
        vectors = directions(found.vectors, are_gaussians=embeds_gaussians(model))
        texts[name] = EmbeddingSet(vectors, found.mask)
    return texts


def pairs_of_images(corpus: Corpus) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Return every two captions of the same image. Raise OpenVSEError if no image has two captions."""
    first: list[int] = []
    second: list[int] = []
    for image in range(len(corpus)):
        own = corpus.relevance.texts[corpus.relevance.images == image]
        rows, columns = np.triu_indices(len(own), k=1)
        first += own[rows].tolist()
        second += own[columns].tolist()
    if not first:
        raise OpenVSEError(
            f"{corpus.name}: no image has two captions, so nothing can be compared: name other data"
        )
    return np.array(first), np.array(second)


def cosines(
    texts: EmbeddingSet, first: Int[np.ndarray, "P"], second: Int[np.ndarray, "P"]
) -> Float[np.ndarray, "P"]:
    """Return the cosine of listed captions, the largest of several embeddings."""
    vectors = torch.nn.functional.normalize(texts.vectors.float(), dim=2)
    parts = []
    for start in range(0, len(first), 8192):
        one, other = first[start : start + 8192], second[start : start + 8192]
        products = vectors[one] @ vectors[other].transpose(1, 2)
        real = texts.mask[one].unsqueeze(2) & texts.mask[other].unsqueeze(1)
        parts.append(products.masked_fill(~real, -torch.inf).amax(dim=(1, 2)))
    return np.asarray(torch.cat(parts).numpy())


def analyze_captions(corpus: Corpus, texts: Texts) -> Analysis:
    """Compare captions of the same image with captions of different images (MV-VSE, Fig. 2)."""
    first, second = pairs_of_images(corpus)
    random = np.random.default_rng(0).permutation(len(first))
    image_of = np.zeros(len(corpus.captions), dtype=np.int64)
    image_of[corpus.relevance.texts] = corpus.relevance.images
    apart = image_of[first] != image_of[second[random]]
    pairs = {"same image": (first, second)}
    if apart.any():  # the captions of one image alone leave none
        pairs["different images"] = first[apart], second[random][apart]
    similarity = {
        (name, kind): cosines(each, *pair) for name, each in texts.items() for kind, pair in pairs.items()
    }
    summary = [
        (*of, len(v), float(v.mean()), *np.percentile(v, (5, 50, 95)).tolist(), float((v < 0).mean()))
        for of, v in similarity.items()
    ]
    rows = [
        (*of, float(BINS[at]), float(BINS[at + 1]), float(share))
        for of, v in similarity.items()
        for at, share in enumerate(np.histogram(v, BINS)[0] / len(v))
    ]
    columns = ("model", "captions of", "pairs", "mean", "5 %", "median", "95 %", "share below 0")
    header = ("model", "captions of", "from", "to", "share")
    return Analysis(
        NAME,
        Table(columns, summary),
        {"": Table(header, rows), "summary": Table(columns, summary)},
        {"": lambda: _draw([*texts], similarity)},
    )


def _draw(names: Sequence[str], similarity: Mapping[tuple[str, str], np.ndarray]) -> Figure:
    figure = new_figure(COLUMN, 2.6)
    axes = figure.subplots()
    middles = (BINS[1:] + BINS[:-1]) / 2
    for (name, kind), values in similarity.items():
        share, ink = 100 * np.histogram(values, BINS)[0] / len(values), colour(names.index(name))
        same = kind == "same image"
        axes.plot(middles, share, "-" if same else "--", color=ink, label=f"{name}, {kind}")
        if same:
            axes.fill_between(middles, share, color=ink, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)
    least = min(float(values.min()) for values in similarity.values())
    axes.set(xlabel="cosine of two captions", ylabel="pairs (%)", xlim=(max(-0.5, least - 0.05), 1.0))
    legend_below(figure, axes, columns=2 if len(names) == 1 else 1)
    return figure
