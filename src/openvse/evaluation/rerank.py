"""Reranking: an indexable model proposes, and a model that scores pairs reranks its best proposals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.evaluation.embed import Member
from openvse.evaluation.ranking import QueryRanks, Ranks
from openvse.types import OnProgress, Relevance


@dataclass(frozen=True)
class Reranker:
    """A model that reranks the first proposals of every query.

    Attributes:
        member: its embeddings of the same items, and the similarity that scores pairs of them.
        top: the number of proposals of each query to rerank. The other candidates keep their places after them.
        weight: w, the weight of its score. The score of the proposing model has weight 1 - w.
    """

    member: Member
    top: int
    weight: float = 1.0

    def part(self, images: slice, texts: Int[Tensor, "t"]) -> Reranker:
        """Return the same for some of the images and some of the texts."""
        return replace(self, member=self.member.part(images, texts))


class Proposals:
    """The best candidates of every query in both directions, gathered block by block."""

    def __init__(self, num_images: int, num_texts: int, top: int, device: torch.device | str) -> None:
        self.i2t = Best(num_images, min(top, num_texts), device)
        self.t2i = Best(num_texts, min(top, num_images), device)

    def see(self, rows: slice, columns: slice, scores: Float[Tensor, "i t"]) -> None:
        """Take a block of scores."""
        self.i2t.see(rows, columns.start, scores)
        self.t2i.see(columns, rows.start, scores.T)

    def of_images(self) -> Grid:
        """Return the image and the text of every candidate of the images."""
        return self.i2t.queries(), self.i2t.positions

    def of_texts(self) -> Grid:
        """Return the image and the text of every candidate of the texts."""
        return self.t2i.positions, self.t2i.queries()


class Best:
    """The best candidates of one direction: their scores and their positions, ``[Q, top]``."""

    def __init__(self, num_queries: int, top: int, device: torch.device | str) -> None:
        self.scores = torch.full((num_queries, top), -torch.inf, device=device)
        self.positions = torch.zeros(num_queries, top, dtype=torch.int64, device=device)

    def see(self, queries: slice, first: int, scores: Float[Tensor, "q c"]) -> None:
        """Take the scores of some queries with consecutive candidates, of which ``first`` is the first."""
        top = self.scores.shape[1]
        best, place = scores.float().topk(min(top, scores.shape[1]), dim=1)
        merged = torch.cat([self.scores[queries], best], dim=1)
        positions = torch.cat([self.positions[queries], place + first], dim=1)
        self.scores[queries], chosen = merged.topk(top, dim=1)
        self.positions[queries] = positions.gather(1, chosen)

    def queries(self) -> Int[Tensor, "Q top"]:
        """Return the query of every candidate."""
        return torch.arange(len(self.positions), device=self.positions.device).unsqueeze(1).expand_as(self.positions)

    def sort_by(self, scores: Float[Tensor, "Q top"]) -> None:
        """Give the candidates other scores, and put the best one first again."""
        self.scores, order = scores.sort(dim=1, descending=True, stable=True)
        self.positions = self.positions.gather(1, order)


@torch.inference_mode()
def rerank(
    ranks: Ranks, proposals: Proposals, reranker: Reranker, relevance: Relevance, progress: OnProgress | None = None
) -> tuple[Ranks, float]:
    """Rerank the proposals of every query, in memory bounded by a block of pairs.

    A query without a relevant candidate among its proposals keeps its rank. Ties count against the model, as in
    ``rank_by_counting``.

    Returns:
        The new ranks, and the seconds that scoring took. The proposals are in their new order.
    """
    started = time.perf_counter()
    member, weight = reranker.member, reranker.weight
    of_images, of_texts = proposals.of_images(), proposals.of_texts()
    count = _counter("re-ranking pairs", sum(grid[0].numel() for grid in (of_images, of_texts)), progress)
    i2t = _mix(member, *of_images, proposals.i2t.scores, weight, count)
    t2i = _mix(member, *of_texts, proposals.t2i.scores, weight, count)
    seconds = time.perf_counter() - started
    relevant = RelevantPairs(relevance)
    again = Ranks(_again(ranks.i2t, i2t, relevant(*of_images)), _again(ranks.t2i, t2i, relevant(*of_texts)))
    proposals.i2t.sort_by(i2t)
    proposals.t2i.sort_by(t2i)
    return again, seconds


Grid = tuple[Int[Tensor, "Q top"], Int[Tensor, "Q top"]]
"""The image and text of every proposal."""


def _mix(
    member: Member,
    images: Int[Tensor, "Q top"],
    texts: Int[Tensor, "Q top"],
    proposed: Float[Tensor, "Q top"],
    weight: float,
    count: Callable[[int], None],
) -> Float[Tensor, "Q top"]:
    """Score the proposals and add the scores of the proposing model, each with its weight."""
    scores = member.score_pairs(images.flatten(), texts.flatten(), count).to(proposed.device)
    return weight * scores.view_as(proposed) + (1 - weight) * proposed


def _counter(work: str, total: int, progress: OnProgress | None) -> Callable[[int], None]:
    """Return a function that adds up the finished pairs and reports their number."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(work, done, total)

    return add


class RelevantPairs:
    """Answers which of many pairs are relevant."""

    def __init__(self, relevance: Relevance) -> None:
        self._num_texts = relevance.num_texts
        self._keys = relevance.images * self._num_texts + relevance.texts

    def __call__(self, images: Int[Tensor, "Q top"], texts: Int[Tensor, "Q top"]) -> Bool[Tensor, "Q top"]:
        """Return for each pair whether it is relevant."""
        keys = (images * self._num_texts + texts).cpu().numpy()
        return torch.from_numpy(np.isin(keys, self._keys)).to(images.device)


def _again(before: QueryRanks, scores: Float[Tensor, "Q top"], relevant: Bool[Tensor, "Q top"]) -> QueryRanks:
    """Return the ranks, replaced for the queries that have a relevant proposal."""
    best = scores.masked_fill(~relevant, -torch.inf).amax(dim=1, keepdim=True)
    level = ((scores >= best) & ~relevant).sum(dim=1)
    tied = ((scores == best) & ~relevant).any(dim=1)
    proposed = relevant.any(dim=1).cpu().numpy()[before.queries]
    return replace(
        before,
        ranks=np.where(proposed, 1 + level.cpu().numpy()[before.queries], before.ranks),
        tied=np.where(proposed, tied.cpu().numpy()[before.queries], before.tied),
        places=None,
    )
