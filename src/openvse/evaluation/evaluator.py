"""Computes a report from embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from openvse.corpus import SharedTexts
from openvse.evaluation.ensemble import Member, Scorer
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
from openvse.evaluation.parts import Part, RankedPart, Scoring, cut_into_parts, join_outcomes, rank_part
from openvse.evaluation.processes import ALONE, Processes
from openvse.evaluation.ranking import Ranks, SeeBlock
from openvse.evaluation.report import Protocol, Remarks, Report, Reranked
from openvse.evaluation.rerank import Reranker
from openvse.types import EmbeddingSet, OnProgress, Relevance

_PRODUCTS_IN_BLOCK = 1 << 18  # 1024 a side would not be faster than 512 and would take twice the memory


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
    every: bool = False,
    keep: int = 0,
    processes: Processes = ALONE,
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
        every: whether to place all relevant candidates, for mAP@R, R-Precision, nDCG@10 and MRR (see ``Places``).
        keep: how many first candidates of each query to keep in ``Report.outcomes``.
        processes: those that share the scoring; all of them return the report.
        progress: a function that is called after every block of scores.

    Raises:
        DataError: embeddings and relevance disagree, nothing is relevant, there are too many folds, or ``every`` is
            given with a reranker.
        ModelError: a score is NaN or infinite, or the re-ranking model cannot score listed pairs.
    """
    members = [Member(images, texts, similarity), *others]
    size = block_size or _default_block(members)
    scoring = Scoring(size, device or images.vectors.device, processes)
    protocol = Protocol(name, *relevance.shape, folds, size, seed, resamples, num_models=len(members))
    parts = list(cut_into_parts(members, relevance, reranker, folds))
    ranked = [rank_part(part, scoring, every=every, keep=keep, also=see, progress=progress) for part in parts]
    found = _report(parts, ranked, protocol, _remarks(ranked, relevance))
    return replace(found, model=model, published=dict(published or {}), problems=tuple(problems))


def _report(
    parts: Sequence[Part], ranked: Sequence[RankedPart], protocol: Protocol, remarks: Remarks
) -> Report:
    """Compute the metrics of all parts, and what says how sure they are."""
    ranks, kept = [each.ranks for each in ranked], [each.outcomes for each in ranked if each.outcomes]
    drawn, again = _replicates(ranks, parts, protocol.resamples, protocol.seed), parts[0].reranker
    seconds = sum(each.seconds for each in ranked)
    return Report(
        metrics=mean_metrics([retrieval_metrics(part_ranks) for part_ranks in ranks]),
        protocol=protocol,
        remarks=remarks,
        reranked=None if again is None else Reranked(again.top, again.weight, seconds),
        intervals=percentile_intervals([drawn]) if drawn else {},
        chance=mean_metrics([chance_metrics(p.relevance, r) for p, r in zip(parts, ranks, strict=True)]),
        replicates=drawn,
        outcomes=join_outcomes(kept) if kept else None,
    )


def _replicates(ranks: Sequence[Ranks], parts: Sequence[Part], resamples: int, seed: int) -> Replicates:
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


def _remarks(parts: Sequence[RankedPart], relevance: Relevance) -> Remarks:
    return Remarks(
        tied_i2t=sum(part.ranks.i2t.num_tied for part in parts),
        tied_t2i=sum(part.ranks.t2i.num_tied for part in parts),
        excluded_i2t=relevance.num_images - len(np.unique(relevance.images)),
        excluded_t2i=relevance.num_texts - len(np.unique(relevance.texts)),
        shared=SharedTexts.of(relevance),
    )
