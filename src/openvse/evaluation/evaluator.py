"""Computes a report from embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.corpus import SharedTexts
from openvse.errors import DataError
from openvse.evaluation.ensemble import Member, Scorer, mean_scores
from openvse.evaluation.metrics import (
    Metrics,
    Replicates,
    bootstrap_replicates,
    chance_metrics,
    mean_metrics,
    mean_replicates,
    percentile_intervals,
    retrieval_metrics,
)
from openvse.evaluation.ranking import Ranks, SeeBlock, rank_by_counting
from openvse.evaluation.report import Protocol, Remarks, Report, Reranked
from openvse.evaluation.rerank import Proposals, Reranker, rerank
from openvse.types import EmbeddingSet, OnProgress, Relevance

_PRODUCTS_IN_BLOCK = 1 << 18  # 1024 a side would not be faster than 512 and would take twice the memory


@dataclass(frozen=True)
class _Part:
    """A part of a data set that is evaluated separately."""

    members: Sequence[Member]
    relevance: Relevance
    reranker: Reranker | None = None


def evaluate(
    images: EmbeddingSet,
    texts: EmbeddingSet,
    relevance: Relevance,
    similarity: Scorer,
    *,
    others: Sequence[Member] = (),
    reranker: Reranker | None = None,
    name: str = "",
    model: str = "",
    folds: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    block_size: int | None = None,
    device: torch.device | str | None = None,
    published: Mapping[str, Metrics] | None = None,
    problems: Sequence[str] = (),
    see: SeeBlock | None = None,
    progress: OnProgress | None = None,
) -> Report:
    """Rank the texts of every image and the images of every text, and return a report.

    Args:
        images: embeddings of the images, in the order of ``relevance``.
        texts: embeddings of the texts, in the order of ``relevance``.
        relevance: which images and texts belong together.
        similarity: the function that scores a block of images against a block of texts.
        others: other models' embeddings of the same items; the scores of all models are averaged.
        reranker: a model that reranks the first proposals of each query.
        name: the data set and split, for the report.
        model: the fingerprint of the model, for the report.
        folds: into how many runs of consecutive images to cut the data, whose metrics are averaged (COCO: 5).
        resamples: the number of bootstrap resamples; 0 leaves the intervals out.
        seed: the seed of the bootstrap.
        block_size: the side of a block of scores; by default a block compares at most 2^18 pairs of embeddings.
        device: the device of the scores; None is that of the images' embeddings.
        published: published results to show next to these, by label.
        problems: what was skipped before, one line each.
        see: a function that is called once with every block of scores, of each fold for itself.
        progress: a function that is called after every block of scores.

    Raises:
        DataError: the numbers of embeddings and relevance disagree, nothing is relevant, or there are too many folds.
        ModelError: a score is NaN or infinite, or the re-ranking model cannot score listed pairs.
    """
    whole = _Part([Member(images, texts, similarity), *others], relevance, reranker)
    size, parts = block_size or _default_block(whole.members), [*_parts(whole, folds)]
    ranks, reranked = _ranks(parts, size, device, progress, see)
    return Report(
        metrics=mean_metrics([*map(retrieval_metrics, ranks)]),
        protocol=Protocol(name, *_shape(relevance), folds, size, seed, resamples, num_models=1 + len(others)),
        remarks=_remarks(ranks, relevance),
        reranked=reranked,
        intervals=percentile_intervals([drawn := _replicates(ranks, parts, resamples, seed)]),
        chance=mean_metrics([chance_metrics(part.relevance) for part in parts]),
        model=model,
        published=dict(published or {}),
        problems=tuple(problems),
        replicates=drawn,
    )


def _ranks(
    parts: Sequence[_Part],
    block_size: int,
    device: torch.device | str | None,
    progress: OnProgress | None,
    see: SeeBlock | None,
) -> tuple[list[Ranks], Reranked | None]:
    """Rank every part; also return how proposals were reranked, if they were."""
    ranked = [_rank(part, block_size, device, progress, see) for part in parts]
    again = parts[0].reranker
    told = None if again is None else Reranked(again.top, again.weight, sum(seconds for _, seconds in ranked))
    return [ranks for ranks, _ in ranked], told


@torch.inference_mode()
def _rank(
    part: _Part,
    block_size: int,
    where: torch.device | str | None,
    progress: OnProgress | None,
    also: SeeBlock | None,
) -> tuple[Ranks, float]:
    """Rank one part, holding a block of scores at a time; also return the seconds that reranking took."""
    device = where or part.members[0].images.vectors.device

    def score_block(rows: slice, columns: slice) -> Float[Tensor, "I T"]:
        return mean_scores(part.members, rows, columns, device)

    relevance, again = part.relevance, part.reranker
    shape = _shape(relevance)
    proposals = None if again is None else Proposals(*shape, again.top, device)
    scored = 0

    def see(rows: slice, columns: slice, scores: Float[Tensor, "I T"]) -> None:
        nonlocal scored
        if proposals is not None:
            proposals.see(rows, columns, scores)
        if also is not None:
            also(rows, columns, scores)
        scored += scores.numel()
        if progress is not None:
            progress("scoring pairs", scored, math.prod(shape))

    ranks = rank_by_counting(score_block, relevance, block_size=block_size, device=device, see=see)
    if again is None or proposals is None:
        return ranks, 0.0
    return rerank(ranks, proposals, again, relevance, device, progress)


def _shape(relevance: Relevance) -> tuple[int, int]:
    return relevance.num_images, relevance.num_texts


def _replicates(ranks: Sequence[Ranks], parts: Sequence[_Part], resamples: int, seed: int) -> Replicates:
    """Resample the images of each part separately, and return the means over the parts."""
    if not resamples:
        return {}
    drawn = [
        bootstrap_replicates(ranked, part.relevance, resamples=resamples, seed=seed + number)
        for number, (ranked, part) in enumerate(zip(ranks, parts, strict=True))
    ]
    return mean_replicates(drawn)


def _default_block(members: Sequence[Member]) -> int:
    """Return a smaller block for sets of embeddings, which have K_images x K_texts comparisons per pair of items."""
    products = max(member.products for member in members)
    return max(16, math.isqrt(_PRODUCTS_IN_BLOCK // max(products, 1)))


def _parts(whole: _Part, folds: int) -> Iterator[_Part]:
    """Yield the whole data, or each run of consecutive images with its relevant texts."""
    relevance = whole.relevance
    for member in (*whole.members, *([whole.reranker.member] if whole.reranker else [])):
        if (len(member.images), len(member.texts)) != (relevance.num_images, relevance.num_texts):
            raise DataError(
                f"{len(member.images)} images and {len(member.texts)} texts are embedded, but the relevance is "
                f"about {relevance.num_images} and {relevance.num_texts}: embed the same items"
            )
    if not 1 <= folds <= relevance.num_images:
        raise DataError(
            f"folds is {folds}: give a number from 1 to {relevance.num_images}, the number of images"
        )
    if folds == 1:
        yield whole
        return
    cuts = np.arange(folds + 1) * relevance.num_images // folds
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        inside = (relevance.images >= start) & (relevance.images < stop)
        texts, renumbered = np.unique(relevance.texts[inside], return_inverse=True)
        own = Relevance(relevance.images[inside] - start, renumbered, stop - start, len(texts))
        chosen = slice(start, stop), torch.from_numpy(texts)
        again = whole.reranker and whole.reranker.part(*chosen)
        yield _Part([member.part(*chosen) for member in whole.members], own, again)


def _remarks(ranks: Sequence[Ranks], relevance: Relevance) -> Remarks:
    return Remarks(
        tied_i2t=sum(ranked.i2t.num_tied for ranked in ranks),
        tied_t2i=sum(ranked.t2i.num_tied for ranked in ranks),
        excluded_i2t=relevance.num_images - len(np.unique(relevance.images)),
        excluded_t2i=relevance.num_texts - len(np.unique(relevance.texts)),
        shared=SharedTexts.of(relevance),
    )
