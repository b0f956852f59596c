"""The parts of a data set that are ranked separately (folds), and the ranking of one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.errors import DataError
from openvse.evaluation.ensemble import Member, mean_scores
from openvse.evaluation.processes import ALONE, Processes
from openvse.evaluation.ranking import QueryRanks, Ranks, SeeBlock, rank_by_counting
from openvse.evaluation.rerank import Best, Proposals, Reranker, rerank
from openvse.types import OnProgress, Relevance


@dataclass(frozen=True)
class Part:
    """A part of a data set that is evaluated separately.

    Attributes:
        members: the models' embeddings of its items.
        relevance: its relevant pairs.
        reranker: a model that reranks the first proposals of each query.
        images: the position of each of its images in the whole data set.
        texts: the position of each of its texts.
    """

    members: Sequence[Member]
    relevance: Relevance
    reranker: Reranker | None
    images: Int[np.ndarray, "I"]
    texts: Int[np.ndarray, "T"]


@dataclass(frozen=True)
class QueryOutcomes:
    """What each query of one direction has found; positions are those of the whole data set.

    Attributes:
        queries: the query of each row, ascending; queries without a relevant candidate are left out.
        ranks: the rank of its best relevant candidate.
        found: its first candidates, best first.
        scores: their scores.
    """

    queries: Int[np.ndarray, "Q"]
    ranks: Int[np.ndarray, "Q"]
    found: Int[np.ndarray, "Q top"]
    scores: Float[np.ndarray, "Q top"]


@dataclass(frozen=True)
class Outcomes:
    """What each query has found, in both directions."""

    i2t: QueryOutcomes
    t2i: QueryOutcomes


@dataclass(frozen=True)
class RankedPart:
    """The ranks of a part, the seconds that reranking took, and what each query has found, if that was asked for."""

    ranks: Ranks
    seconds: float = 0.0
    outcomes: Outcomes | None = None


def cut_into_parts(
    members: Sequence[Member], relevance: Relevance, reranker: Reranker | None, folds: int
) -> Iterator[Part]:
    """Yield the whole data, or each run of consecutive images with its relevant texts.

    Raises:
        DataError: the numbers of embeddings and relevance disagree, or there are too many folds.
    """
    for member in (*members, *([reranker.member] if reranker else [])):
        if (len(member.images), len(member.texts)) != relevance.shape:
            raise DataError(
                f"{len(member.images)} images and {len(member.texts)} texts are embedded, but the relevance is "
                f"about {relevance.num_images} and {relevance.num_texts}: embed the same items"
            )
    if not 1 <= folds <= relevance.num_images:
        raise DataError(
            f"folds is {folds}: give a number from 1 to {relevance.num_images}, the number of images"
        )
    every_image, every_text = np.arange(relevance.num_images), np.arange(relevance.num_texts)
    if folds == 1:
        yield Part(members, relevance, reranker, every_image, every_text)
        return
    cuts = np.arange(folds + 1) * relevance.num_images // folds
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        inside = (relevance.images >= start) & (relevance.images < stop)
        texts, renumbered = np.unique(relevance.texts[inside], return_inverse=True)
        own = Relevance(relevance.images[inside] - start, renumbered, stop - start, len(texts))
        chosen = slice(start, stop), torch.from_numpy(texts)
        again = reranker and reranker.part(*chosen)
        yield Part([member.part(*chosen) for member in members], own, again, every_image[start:stop], texts)


@dataclass(frozen=True)
class Scoring:
    """How pairs are scored.

    Attributes:
        block_size: the side of a block of scores.
        device: the device of the scores.
        processes: those that share the work.
    """

    block_size: int
    device: torch.device | str
    processes: Processes = ALONE


@torch.inference_mode()
def rank_part(
    part: Part,
    scoring: Scoring,
    *,
    every: bool = False,
    keep: int = 0,
    also: SeeBlock | None = None,
    progress: OnProgress | None = None,
) -> RankedPart:
    """Rank one part, holding a block of scores at a time.

    Args:
        part: the part.
        scoring: how its pairs are scored.
        every: whether to place all relevant candidates; see ``rank_by_counting``.
        keep: how many first candidates of each query to keep as its outcome; 0 keeps no outcomes.
        also: a function that is called once with every block.
        progress: a function that is called after every block.

    Raises:
        DataError: ``every`` is given with a reranker.
    """
    relevance, again, device = part.relevance, part.reranker, scoring.device
    if again is not None and every:
        raise DataError(
            "reranking places only the best relevant candidate: leave out mAP@R and the like with it"
        )
    shape = relevance.shape
    top = again.top if again else keep
    proposals = Proposals(*shape, top, device) if top else None
    scored = 0

    def score_block(rows: slice, columns: slice) -> Float[Tensor, "I T"]:
        return mean_scores(part.members, rows, columns, device)

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
        score_block,
        relevance,
        block_size=scoring.block_size,
        device=device,
        see=see,
        every=every,
        processes=scoring.processes,
    )
    if proposals is None:
        return RankedPart(ranks)
    if again is None:
        return RankedPart(ranks, outcomes=_outcomes(part, ranks, proposals, keep))
    ranks, seconds = rerank(ranks, proposals, again, relevance, device, progress)
    return RankedPart(ranks, seconds, _outcomes(part, ranks, proposals, keep) if keep else None)


def join_outcomes(parts: Sequence[Outcomes]) -> Outcomes:
    """Return the outcomes of all parts, in the order of the queries."""
    return Outcomes(_joined([part.i2t for part in parts]), _joined([part.t2i for part in parts]))


def _outcomes(part: Part, ranks: Ranks, proposals: Proposals, keep: int) -> Outcomes:
    def one(ranked: QueryRanks, best: Best, queries: np.ndarray, candidates: np.ndarray) -> QueryOutcomes:
        first = best.positions[:, :keep], best.scores[:, :keep]
        found, scores = (each.cpu().numpy()[ranked.queries] for each in first)
        return QueryOutcomes(queries[ranked.queries], ranked.ranks, candidates[found], scores)

    return Outcomes(
        one(ranks.i2t, proposals.i2t, part.images, part.texts),
        one(ranks.t2i, proposals.t2i, part.texts, part.images),
    )


def _joined(parts: Sequence[QueryOutcomes]) -> QueryOutcomes:
    width = min(part.found.shape[1] for part in parts)
    queries = np.concatenate([part.queries for part in parts])
    order = np.argsort(queries, kind="stable")
    return QueryOutcomes(
        queries[order],
        np.concatenate([part.ranks for part in parts])[order],
        np.concatenate([part.found[:, :width] for part in parts])[order],
        np.concatenate([part.scores[:, :width] for part in parts])[order],
    )
