"""The way from embeddings to a report: cut the data into folds, rank each, and average the metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.corpus.corpus import SharedTexts
from openvse.errors import DataError, check_number
from openvse.evaluation.embed import Member, Penalties, Scorer, bank_penalties, mean_scores
from openvse.evaluation.metrics import (
    Replicates,
    bootstrap_replicates,
    chance_metrics,
    mean_metrics,
    mean_replicates,
    percentile_intervals,
    retrieval_metrics,
)
from openvse.evaluation.ranking import ALONE, Processes, QueryRanks, Ranks, SeeBlock, rank_by_counting
from openvse.evaluation.report import Outcomes, Protocol, QueryOutcomes, Remarks, Report, Reranked
from openvse.evaluation.rerank import Best, Proposals, Reranker, rerank
from openvse.scoring.calibration import QueryBank
from openvse.types import EmbeddingSet, OnProgress, Relevance

RowsT = TypeVar("RowsT", QueryRanks, QueryOutcomes)


@dataclass(frozen=True)
class Fold:
    """A part of a data set that is evaluated separately, with the positions of its items in the whole data set."""

    members: Sequence[Member]
    relevance: Relevance
    reranker: Reranker | None
    images: Int[np.ndarray, "I"]
    texts: Int[np.ndarray, "T"]


@dataclass(frozen=True)
class RankedFold:
    """The ranks of a part, the seconds of reranking, and the results of each query if requested."""

    ranks: Ranks
    seconds: float = 0.0
    outcomes: Outcomes | None = None


def cut_into_folds(
    members: Sequence[Member], relevance: Relevance, reranker: Reranker | None, folds: int
) -> Iterator[Fold]:
    """Yield the whole data, or each run of consecutive images with its relevant texts."""
    for member in (*members, *([reranker.member] if reranker else [])):
        if (len(member.images), len(member.texts)) != relevance.shape:
            raise DataError(
                f"{len(member.images)} images and {len(member.texts)} texts are embedded, but the relevance has "
                f"{relevance.num_images} and {relevance.num_texts}: embed the same items"
            )
    check_number("folds", folds, 1, relevance.num_images, whole=True)  # one image each, at least
    every_image, every_text = np.arange(relevance.num_images), np.arange(relevance.num_texts)
    if folds == 1:
        yield Fold(members, relevance, reranker, every_image, every_text)
        return
    cuts = np.arange(folds + 1) * relevance.num_images // folds
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        inside = (relevance.images >= start) & (relevance.images < stop)
        texts, renumbered = np.unique(relevance.texts[inside], return_inverse=True)
        own = Relevance(relevance.images[inside] - start, renumbered, stop - start, len(texts))
        chosen = slice(start, stop), torch.from_numpy(texts)
        again = reranker and reranker.part(*chosen)
        yield Fold([member.part(*chosen) for member in members], own, again, every_image[start:stop], texts)


@torch.inference_mode()
def rank_fold(
    part: Fold,
    block_size: int,
    *,
    processes: Processes = ALONE,
    every: bool = False,
    keep: int = 0,
    less: Penalties | None = None,
    also: SeeBlock | None = None,
    progress: OnProgress | None = None,
) -> RankedFold:
    """Rank one part, a block of scores at a time, after subtracting ``less``. ``also`` gets each block."""
    relevance, again = part.relevance, part.reranker
    if again is not None and every:
        raise DataError("reranking places only the best relevant candidate: leave out mAP@R and the like")
    shape, top, device = relevance.shape, again.top if again else keep, part.members[0].device
    proposals = Proposals(*shape, top, device) if top else None
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

    ranks = rank_by_counting(
        partial(_scores, part.members, less),
        relevance,
        block_size=block_size,
        device=device,
        see=see,
        every=every,
        processes=processes,
    )
    if proposals is None:
        return RankedFold(ranks)
    if again is None:
        return RankedFold(ranks, outcomes=_outcomes(part, ranks, proposals, keep))
    ranks, seconds = rerank(ranks, proposals, again, relevance, progress)
    return RankedFold(ranks, seconds, _outcomes(part, ranks, proposals, keep) if keep else None)


def _scores(members: Sequence[Member], less: Penalties | None, rows: slice, columns: slice) -> Float[Tensor, "I T"]:
    scores = mean_scores(members, rows, columns)
    if less is None:
        return scores
    # Among the candidates of one query its own share is the same number, so one block serves both directions.
    parts = zip(less, (rows, columns), strict=True)
    images, texts = (torch.from_numpy(each[some]).to(scores) for each, some in parts)
    return scores - images.unsqueeze(1) - texts


def _outcomes(part: Fold, ranks: Ranks, proposals: Proposals, keep: int) -> Outcomes:
    def one(ranked: QueryRanks, best: Best, queries: np.ndarray, candidates: np.ndarray) -> QueryOutcomes:
        first = best.positions[:, :keep], best.scores[:, :keep]
        hits, scores = (each.cpu().numpy()[ranked.queries] for each in first)
        return QueryOutcomes(queries[ranked.queries], ranked.ranks, candidates[hits], scores)

    return Outcomes(
        one(ranks.i2t, proposals.i2t, part.images, part.texts), one(ranks.t2i, proposals.t2i, part.texts, part.images)
    )


def _joined(parts: Sequence[QueryOutcomes]) -> QueryOutcomes:
    width = min(part.hits.shape[1] for part in parts)
    columns = ((each.queries, each.ranks, each.hits[:, :width], each.scores[:, :width]) for each in parts)
    joined = [*map(np.concatenate, zip(*columns, strict=True))]
    order = np.argsort(joined[0], kind="stable")
    return QueryOutcomes(*(column[order] for column in joined))


_PRODUCTS_IN_BLOCK = 1 << 18  # 1024 a side would not be faster than 512 and would take twice the memory
_PRODUCTS_ON_A_GPU = 1 << 22  # which computes 512 a side faster than it is told to


def evaluate_sets(
    images: EmbeddingSet,
    texts: EmbeddingSet,
    relevance: Relevance,
    similarity: Scorer,
    *,
    others: Sequence[Member] = (),
    reranker: Reranker | None = None,
    bank: QueryBank | None = None,
    name: str = "",
    model: str = "",
    folds: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    block_size: int | None = None,
    see: SeeBlock | None = None,
    every: bool = False,
    keep: int = 0,
    processes: Processes = ALONE,
    progress: OnProgress | None = None,
) -> Report:
    """Rank the texts of every image and the images of every text, and return a report.

    The device of the similarity computes and counts the scores.

    Args:
        images: embeddings of the images, in the order of ``relevance``.
        texts: embeddings of the texts, in the order of ``relevance``.
        relevance: which images and texts belong together.
        similarity: the function that scores a block of images against a block of texts.
        others: other models' embeddings of the same items. The scores of all models are averaged.
        reranker: a model that reranks the first proposals of each query.
        bank: images and texts that show which items are hubs, to take the hubs out.
        name: the data set and split, for the report.
        model: the fingerprint of the model, for the report.
        folds: the number of runs of consecutive images to evaluate separately and average (COCO: 5).
        resamples: the number of bootstrap resamples. 0 leaves the intervals out.
        block_size: the side of a block of scores. Default: at most 2^18 pairs of embeddings in a block, on a GPU 2^22.
        see: a function to call once with every block of scores, of each fold for itself.
        every: whether to place all relevant candidates, for mAP@R, R-Precision, nDCG@10 and MRR (see ``Places``).
        keep: the number of first candidates of each query to keep in ``Report.outcomes``.
        processes: the processes that share the scoring. All of them return the report.
        progress: a function to call after every block of scores.

    Raises:
        DataError: embeddings and relevance disagree, nothing is relevant, there are too many folds, or two of
            ``every``, a bank and a reranker are present.
        ModelError: a score is NaN or infinite, or the re-ranking model cannot score listed pairs.
    """
    members = [Member(images, texts, similarity), *others]
    size = block_size or _block_size(members)
    protocol = Protocol(name, *relevance.shape, folds, size, seed, resamples, num_models=len(members))
    parts = list(cut_into_folds(members, relevance, reranker, folds))
    if bank is not None and (reranker is not None or every or others):
        raise DataError("a query bank belongs to one model: leave out others, reranking, mAP@R and the like")
    rank = partial(rank_fold, block_size=size, processes=processes, progress=progress)
    rank = partial(rank, every=every, keep=keep, also=see)
    less = [None if bank is None else bank_penalties(part.members[0], bank) for part in parts]
    ranked = [rank(part, less=each) for part, each in zip(parts, less, strict=True)]
    return replace(_report(parts, ranked, protocol, _remarks(ranked, relevance)), model=model)


def _block_size(members: Sequence[Member]) -> int:
    """Return the side of a block. Embedding sets have K x K comparisons of two items, and get smaller blocks."""
    most = _PRODUCTS_IN_BLOCK if members[0].device.type == "cpu" else _PRODUCTS_ON_A_GPU
    return max(16, math.isqrt(most // max(1, *(member.products for member in members))))


def _report(parts: Sequence[Fold], ranked: Sequence[RankedFold], protocol: Protocol, remarks: Remarks) -> Report:
    """Compute the metrics of all parts, and their intervals and remarks."""
    ranks, outcomes = [each.ranks for each in ranked], [each.outcomes for each in ranked if each.outcomes]
    drawn, again = _replicates(ranks, parts, protocol.resamples, protocol.seed), parts[0].reranker
    return Report(
        metrics=mean_metrics([retrieval_metrics(part_ranks) for part_ranks in ranks]),
        protocol=protocol,
        remarks=remarks,
        reranked=None if again is None else Reranked(again.top, again.weight, sum(each.seconds for each in ranked)),
        intervals=percentile_intervals([drawn]) if drawn else {},
        chance=mean_metrics([chance_metrics(p.relevance, r) for p, r in zip(parts, ranks, strict=True)]),
        replicates=drawn,
        outcomes=Outcomes(_joined([o.i2t for o in outcomes]), _joined([o.t2i for o in outcomes])) if outcomes else None,
    )


def _replicates(ranks: Sequence[Ranks], parts: Sequence[Fold], resamples: int, seed: int) -> Replicates:
    """Resample the images of each part separately, and return the means over the parts."""
    if not resamples:
        return {}
    drawn = [
        bootstrap_replicates(ranked, part.relevance, resamples=resamples, seed=seed + number)
        for number, (ranked, part) in enumerate(zip(ranks, parts, strict=True))
    ]
    return mean_replicates(drawn)


def _remarks(parts: Sequence[RankedFold], relevance: Relevance) -> Remarks:
    return Remarks(
        tied_i2t=sum(part.ranks.i2t.num_tied for part in parts),
        tied_t2i=sum(part.ranks.t2i.num_tied for part in parts),
        excluded_i2t=relevance.num_images - len(np.unique(relevance.images)),
        excluded_t2i=relevance.num_texts - len(np.unique(relevance.texts)),
        shared=SharedTexts.of(relevance),
    )
