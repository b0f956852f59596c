"""Ranks without sorting: counts, block by block, the candidates ahead of the best relevant one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import DataError, ModelError
from openvse.evaluation.places import PlaceCounter, Places
from openvse.types import Relevance

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Processes:
    """The processes that evaluate together, seen by one of them. All of them make the same calls.

    One process alone needs no process group of ``torch.distributed``.
    """

    rank: int = 0
    count: int = 1

    def gather(self, mine: Result) -> list[Result]:
        """Return the results of all processes, in the order of their ranks."""
        if self.count == 1:
            return [mine]
        parts: list[Result | None] = [None] * self.count
        dist.all_gather_object(parts, mine)
        return cast("list[Result]", parts)

    def take_turns(self, tasks: Iterable[Task], work: Callable[[Task], Result]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result. Each process does one of ``count`` consecutive tasks."""
        remaining = iter(tasks)
        while turn := list(islice(remaining, self.count)):
            mine = work(turn[self.rank]) if self.rank < len(turn) else None
            yield from zip(turn, cast("list[Result]", self.gather(mine)), strict=False)


ALONE = Processes()
"""One process that does everything itself."""


ScoreBlock = Callable[[slice, slice], Float[Tensor, "I T"]]
"""A function that scores some images against some texts. It may be called twice and must return the same scores."""

SeeBlock = Callable[[slice, slice, Tensor], None]
"""A function that takes a block of scores, as (rows, columns, scores)."""


@dataclass(frozen=True)
class QueryRanks:
    """Ranks of one direction, 1 = best, without the queries that have no relevant candidate.

    Attributes:
        queries: the query of each rank, ascending.
        tied: whether an irrelevant candidate has the same score as the best relevant one.
        num_queries: the number of queries, including the queries without a relevant candidate.
    """

    queries: Int[np.ndarray, "Q"]
    ranks: Int[np.ndarray, "Q"]
    tied: Bool[np.ndarray, "Q"]
    num_queries: int
    num_candidates: int
    places: Places | None = None

    @property
    def num_tied(self) -> int:
        """The number of queries with a tie at their best relevant candidate."""
        return int(self.tied.sum())


@dataclass(frozen=True)
class Ranks:
    """Ranks of both directions: images as queries for texts (``i2t``) and texts as queries for images (``t2i``)."""

    i2t: QueryRanks
    t2i: QueryRanks


@torch.no_grad()
def rank_by_counting(
    score_block: ScoreBlock,
    relevance: Relevance,
    *,
    block_size: int = 512,
    device: torch.device | str = "cpu",
    see: SeeBlock | None = None,
    every: bool = False,
    processes: Processes = ALONE,
) -> Ranks:
    """Rank the best relevant candidate of every query, in both directions, holding one block of scores at a time.

    ``rank = 1 + #{irrelevant c : s(q, c) >= max_{relevant r} s(q, r)}``: ties count against the model, so
    that equal embeddings rank last instead of first. Other relevant candidates are never ahead of the best.

    The blocks that hold a relevant pair are scored first, for the best relevant score of each query. Then every block
    is scored and counted. If the texts are in the order of their images, the pairs are near the diagonal and the first
    pass is a fraction of the second.

    Args:
        score_block: the function that scores a slice of images against a slice of texts, ``[I, T]``.
        relevance: the relevant pairs.
        block_size: about the side of a block of scores, which determines the memory.
        device: the device of the scores from ``score_block``.
        see: a function to call once with every block.
        every: whether to count the places of all relevant candidates, too (``QueryRanks.places``).
        processes: the processes that share the scoring. Each of them counts every block.

    Raises:
        DataError: no pair is relevant, one is outside the images or texts, or places are wanted and one is there twice.
        ModelError: a score is NaN or infinite.
    """
    if every:
        _refuse_twice(relevance)
    blocks = _Blocks(relevance, block_size, device)

    def score(block: _Block) -> Float[Tensor, "I T"]:
        scores = _finite(score_block(block[0], block[1]), block[0], block[1])
        return scores if processes.count == 1 else scores.cpu()  # another process may have another device

    images, texts, best = [], [], []
    for (rows, columns, pair), scores in processes.take_turns(blocks.with_pairs(), score):
        best.append(scores.to(device)[pair])
        images.append(pair[0] + rows.start)
        texts.append(pair[1] + columns.start)
    relevant = torch.cat(best)
    i2t = _Counter(torch.cat(images), relevant, relevance.num_images, every=every)
    t2i = _Counter(torch.cat(texts), relevant, relevance.num_texts, every=every)
    for (rows, columns, pair), sent in processes.take_turns(blocks, score):
        scores = sent.to(device)
        if see is not None:
            see(rows, columns, scores)
        others = scores.index_put(pair, scores.new_full((), -torch.inf)) if len(pair[0]) else scores
        i2t.add(rows, others)
        t2i.add(columns, others, by_column=True)
    return Ranks(i2t.ranks(relevance.num_texts), t2i.ranks(relevance.num_images))


Pairs = tuple[Int[Tensor, "P"], Int[Tensor, "P"]]
"""The row and column of each relevant pair inside a block."""

_Block = tuple[slice, slice, Pairs]
"""The rows and the columns of a block, and the relevant pairs inside it."""


class _Blocks:
    """The rectangles of the score matrix, each with the relevant pairs inside it."""

    def __init__(self, relevance: Relevance, size: int, device: torch.device | str) -> None:
        _check(relevance)
        self._rows, self._columns = _grid(*relevance.shape, size)
        row = np.searchsorted(self._rows, relevance.images, side="right") - 1
        column = np.searchsorted(self._columns, relevance.texts, side="right") - 1
        self._across = len(self._columns) - 1
        number = row * self._across + column
        order = np.argsort(number, kind="stable")
        self._starts = np.searchsorted(number[order], np.arange((len(self._rows) - 1) * self._across + 1))
        self._images = torch.from_numpy((relevance.images - self._rows[row])[order]).to(device)
        self._texts = torch.from_numpy((relevance.texts - self._columns[column])[order]).to(device)

    def __iter__(self) -> Iterator[_Block]:
        return map(self._block, range(len(self._starts) - 1))

    def with_pairs(self) -> Iterator[_Block]:
        """Return only the blocks that hold a relevant pair."""
        return map(self._block, np.flatnonzero(np.diff(self._starts)).tolist())

    def _block(self, number: int) -> _Block:
        row, column = divmod(number, self._across)
        inside = slice(*self._starts[number : number + 2].tolist())
        return (
            slice(*self._rows[row : row + 2].tolist()),
            slice(*self._columns[column : column + 2].tolist()),
            (self._images[inside], self._texts[inside]),
        )


class _Counter:
    """Counts, in one direction, the candidates ahead of the best relevant one, and those ahead or tied."""

    def __init__(
        self, queries: Int[Tensor, "P"], relevant: Float[Tensor, "P"], num_queries: int, *, every: bool
    ) -> None:
        nothing = relevant.new_full((num_queries,), -torch.inf)
        self._best = nothing.scatter_reduce(0, queries, relevant, "amax").unsqueeze(1)
        self._ahead = queries.new_zeros(num_queries)
        self._level = queries.new_zeros(num_queries)
        self._others = PlaceCounter(queries, relevant, num_queries) if every else None

    def add(self, queries: slice, scores: Float[Tensor, "R C"], *, by_column: bool = False) -> None:
        """Count a block, whose relevant pairs hold -inf. Its rows are the queries, or its columns."""
        best, along = self._best[queries], 0 if by_column else 1
        best = best.T if by_column else best
        # A comparison that writes 0.0 and 1.0 and its sum are several times as fast as one that writes booleans. The
        # counts are exact: a block has far fewer than 2^24 candidates.
        marks = torch.empty_like(scores)
        self._ahead[queries] += torch.gt(scores, best, out=marks).sum(dim=along).long()
        self._level[queries] += torch.ge(scores, best, out=marks).sum(dim=along).long()
        if self._others is not None:
            self._others.add(queries, scores.T if by_column else scores)

    def ranks(self, num_candidates: int) -> QueryRanks:
        """Return the ranks of the queries that have a relevant candidate."""
        asked = (self._best.squeeze(1) > -torch.inf).nonzero().squeeze(1)
        ahead, level = self._ahead[asked], self._level[asked]
        return QueryRanks(
            queries=asked.cpu().numpy(),
            ranks=(level + 1).cpu().numpy(),
            tied=(level > ahead).cpu().numpy(),
            num_queries=len(self._best),
            num_candidates=num_candidates,
            places=None if self._others is None else self._others.places(self._level, num_candidates),
        )


def _grid(num_images: int, num_texts: int, size: int) -> tuple[Int[np.ndarray, "R"], Int[np.ndarray, "C"]]:
    """Cut both axes into the same number of runs, so that blocks have the proportions of the whole.

    Then few blocks are on the diagonal. Runs have nearly equal length: a remainder of one row would be scored by
    another kernel (matrix x vector), whose rounding breaks ties.
    """
    parts = min(math.ceil(math.sqrt(num_images * num_texts) / size), num_images, num_texts)
    rows = np.arange(parts + 1, dtype=np.int64) * num_images // parts
    return rows, np.unique(rows * num_texts // num_images)


def _finite(scores: Float[Tensor, "I T"], rows: slice, columns: slice) -> Float[Tensor, "I T"]:
    """Return the scores. Raise ModelError if one is NaN or infinite, since counting would misplace it."""
    low, high = torch.aminmax(scores)
    if not (low.isfinite() & high.isfinite()):
        image, text = (~scores.isfinite()).nonzero().tolist()[0]
        raise ModelError(
            f"the score of image {rows.start + image} and text {columns.start + text} (counted from 0) is NaN or "
            f"infinite, so nothing can be ranked: look for NaN in the model's embeddings"
        )
    return scores


def _check(relevance: Relevance) -> None:
    if not len(relevance.images):
        raise DataError("no image is relevant to any text, so nothing can be ranked: give at least one pair")
    for name, ids, count in (
        ("image", relevance.images, relevance.num_images),
        ("text", relevance.texts, relevance.num_texts),
    ):
        outside = ids[(ids < 0) | (ids >= count)]
        if len(outside):
            raise DataError(f"relevance names {name} {outside[0]}, but {name}s are 0 to {count - 1}: correct the pairs")


def _refuse_twice(relevance: Relevance) -> None:
    keys, counts = np.unique(relevance.images * relevance.num_texts + relevance.texts, return_counts=True)
    twice = keys[counts > 1]
    if len(twice):
        image, text = divmod(int(twice[0]), relevance.num_texts)
        raise DataError(f"image {image} and text {text} are paired twice: list each pair once")
