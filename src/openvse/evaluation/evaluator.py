"""Embeddings -> Report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.errors import DataError
from openvse.evaluation.metrics import (
    Metrics,
    bootstrap_replicates,
    chance_metrics,
    mean_metrics,
    percentile_intervals,
    retrieval_metrics,
)
from openvse.evaluation.ranking import Ranks, rank_by_counting
from openvse.evaluation.report import Protocol, Remarks, Report
from openvse.types import EmbeddingSet, Relevance

Scorer = Callable[[EmbeddingSet, EmbeddingSet], Float[Tensor, "I T"]]
"""A similarity: any module or function that scores all pairs."""

_PRODUCTS_IN_BLOCK = 1 << 18  # from 512 to 1024 a side is no faster and takes twice the memory


@dataclass(frozen=True)
class _Part:
    """A part of a data set that is evaluated on its own."""

    images: EmbeddingSet
    texts: EmbeddingSet
    relevance: Relevance


def evaluate(
    images: EmbeddingSet,
    texts: EmbeddingSet,
    relevance: Relevance,
    similarity: Scorer,
    *,
    name: str = "",
    model: str = "",
    folds: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    block_size: int | None = None,
    device: torch.device | str | None = None,
    published: Mapping[str, Metrics] | None = None,
    problems: Sequence[str] = (),
) -> Report:
    """Rank every image's texts and every text's images, and report what that amounts to.

    Args:
        images: embeddings of the images, in the order of ``relevance``.
        texts: embeddings of the texts.
        relevance: which belong together.
        similarity: scores a block of images against a block of texts.
        name: which data set and split, for the report.
        model: fingerprint of the model, for the report.
        folds: evaluate this many runs of consecutive images apart, each with its texts; average (COCO: 5).
        resamples: of the bootstrap; 0 leaves the intervals out.
        seed: of the bootstrap.
        block_size: side of a block of scores; by default a block compares 2^18 pairs of embeddings.
        device: where to score; by default where the images' embeddings lie.
        published: figures to show beside these, by label.
        problems: what was skipped before, one line each.

    Raises:
        DataError: embeddings and relevance disagree in number, nothing is relevant, or too many ``folds``.
        ModelError: a score is NaN or infinite.
    """
    size = block_size or _default_block(images, texts)
    parts = list(_parts(_Part(images, texts, relevance), folds))
    ranks = [_rank(part, similarity, size, device or images.vectors.device) for part in parts]
    intervals = {}
    if resamples:
        replicates = [
            bootstrap_replicates(ranked, part.relevance, resamples=resamples, seed=seed + number)
            for number, (ranked, part) in enumerate(zip(ranks, parts, strict=True))
        ]
        intervals = percentile_intervals(replicates)
    return Report(
        metrics=mean_metrics([retrieval_metrics(ranked) for ranked in ranks]),
        protocol=Protocol(name, relevance.num_images, relevance.num_texts, folds, size, seed, resamples),
        remarks=_remarks(ranks, relevance),
        intervals=intervals,
        chance=mean_metrics([chance_metrics(part.relevance) for part in parts]),
        model=model,
        published=dict(published or {}),
        problems=tuple(problems),
    )


@torch.inference_mode()
def _rank(part: _Part, similarity: Scorer, block_size: int, device: torch.device | str) -> Ranks:
    """Rank one part, moving a block at a time to the device and scoring it in at least single precision."""

    def score_block(rows: slice, columns: slice) -> Float[Tensor, "I T"]:
        scores = similarity(_precise(part.images[rows].to(device)), _precise(part.texts[columns].to(device)))
        return scores if scores.dtype == torch.float64 else scores.float()

    return rank_by_counting(score_block, part.relevance, block_size=block_size, device=device)


def _precise(embedded: EmbeddingSet) -> EmbeddingSet:
    """Embeddings stored in half precision are compared in single precision: coarse scores would make ties."""
    if embedded.vectors.dtype in (torch.float32, torch.float64):
        return embedded
    return replace(embedded, vectors=embedded.vectors.float())


def _default_block(images: EmbeddingSet, texts: EmbeddingSet) -> int:
    """A similarity of sets compares K_images x K_texts embeddings a pair of items: so the block shrinks."""
    products = images.vectors.shape[1] * texts.vectors.shape[1]
    return max(16, math.isqrt(_PRODUCTS_IN_BLOCK // max(products, 1)))


def _parts(whole: _Part, folds: int) -> Iterator[_Part]:
    """Yield the whole, or each run of consecutive images with the texts that are relevant to it."""
    relevance = whole.relevance
    if (len(whole.images), len(whole.texts)) != (relevance.num_images, relevance.num_texts):
        raise DataError(
            f"{len(whole.images)} images and {len(whole.texts)} texts are embedded, but the relevance is "
            f"about {relevance.num_images} and {relevance.num_texts}: embed the same items"
        )
    if not 1 <= folds <= relevance.num_images:
        raise DataError(f"folds is {folds}, allowed are 1 to {relevance.num_images}, the number of images")
    if folds == 1:
        yield whole
        return
    cuts = np.arange(folds + 1) * relevance.num_images // folds
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        inside = (relevance.images >= start) & (relevance.images < stop)
        texts, renumbered = np.unique(relevance.texts[inside], return_inverse=True)
        own = Relevance(relevance.images[inside] - start, renumbered, stop - start, len(texts))
        yield _Part(
            whole.images[start:stop], whole.texts[torch.from_numpy(texts).to(whole.texts.mask.device)], own
        )


def _remarks(ranks: Sequence[Ranks], relevance: Relevance) -> Remarks:
    return Remarks(
        tied_i2t=sum(ranked.i2t.num_tied for ranked in ranks),
        tied_t2i=sum(ranked.t2i.num_tied for ranked in ranks),
        excluded_i2t=relevance.num_images - len(np.unique(relevance.images)),
        excluded_t2i=relevance.num_texts - len(np.unique(relevance.texts)),
    )
