"""The exact engine: every item is scored, block by block over the memory map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import IndexFormatError, ModelError
from openvse.evaluation import Scorer
from openvse.functional import set_max_scores
from openvse.index.conditions import Condition
from openvse.index.segments import Segment
from openvse.search.backend import Engine
from openvse.search.products import MARGIN, inner_products
from openvse.stores.ordering import largest, pack, promising, unpack
from openvse.types import EmbeddingSet


@dataclass(frozen=True)
class _Block:
    """Some rows of a segment, those of them that may be found, and the positions of these.

    They are arrays until few are left: torch's threads, once woken, take the processor from those of the product.
    """

    vectors: Float[np.ndarray, "m K D"]
    positions: Int[np.ndarray, "n"]
    chosen: Int[np.ndarray, "n"] | None

    def rows(self, places: Int[np.ndarray, "p"]) -> Tensor:
        """Return the embeddings of some of the items that may be found."""
        return torch.from_numpy(self.vectors[places if self.chosen is None else self.chosen[places]])


@dataclass(frozen=True)
class _Steps:
    """How many items are scored at once where a segment is read as it is, and where some of its rows are copied."""

    mapped: int
    copied: int


class ExactBackend(Engine):
    """Scores every item and keeps the best of what it has seen.

    Items are ordered by score, then by position. What may be among the best of a block is scored once more in double
    precision and rounded to single, so that neither the order nor a score depends on the blocks, or on the queries that
    are asked together.

    Args:
        vectors: embeddings of the items, ``[count, K, D]``, in memory or mapped; or the segments of an index.
        block_values: numbers of a block, of embeddings that are copied and of scores; memory is bounded by it.
        score: the model's similarity; the items take the side of the images, the queries that of the texts.
        names: of the items, for messages; positions where there are none.
        inner: whether the score is the largest inner product of two embeddings, so that a product of the processor may
            stand for it; None finds out whether ``score`` is that of ``openvse.functional``.
    """

    name = "exact"
    is_exact = True

    def __init__(
        self,
        vectors: Float[np.ndarray, "count K D"] | Sequence[Segment],
        block_values: int = 1 << 22,
        *,
        score: Scorer = set_max_scores,
        names: Sequence[str] = (),
        inner: bool | None = None,
    ) -> None:
        if isinstance(vectors, np.ndarray):
            vectors = [Segment(vectors, np.arange(len(vectors), dtype=np.int32))]
        self._segments = vectors
        self._is_full = [bool((segment.positions >= 0).all()) for segment in vectors]
        self._block_values, self._score, self._names = block_values, score, names
        self._inner = score is set_max_scores if inner is None else inner

    @torch.inference_mode()
    def search_some(
        self,
        queries: EmbeddingSet,
        top_k: int,
        *,
        weights: Float[Tensor, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
        where: Sequence[Condition] = (),
    ) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores and positions of the best allowed items; see ``Engine``."""
        steps, parts = self._plan(queries, weights)
        best = [torch.empty(part.count, 0, dtype=torch.int64) for part in parts]
        for block in self._blocks(steps, allowed):
            for number, part in enumerate(parts):
                best[number] = self._improved(best[number], block, part, top_k)
        return unpack(torch.cat(best))

    @torch.inference_mode()
    def score_some(
        self,
        queries: EmbeddingSet,
        vectors: Float[Tensor, "n K D"],
        weights: Float[Tensor, "Q P"] | None = None,
    ) -> Float[Tensor, "Q n"]:
        """Return the exact scores of some items, which do not depend on what else is scored."""
        return self._exact(vectors, _Part(queries, weights))

    def _plan(self, queries: EmbeddingSet, weights: Tensor | None) -> tuple[_Steps, list[_Part]]:
        """Return how many items to score at once, and the queries that are scored together."""
        num_embeddings, dim = self._segments[0].vectors.shape[1:] if self._segments else (1, 1)
        # At least 256 items a block: queries are taken together as long as their scores fit.
        products = num_embeddings * queries.mask.shape[1]
        together = max(1, self._block_values // (256 * products)) if weights is None else len(queries)
        of_scores = products * min(together, len(queries))
        copied = max(1, self._block_values // max(num_embeddings * dim, of_scores))
        mapped = max(1, self._block_values // of_scores) if self._inner else copied
        starts = range(0, len(queries), together)
        if weights is not None:
            return _Steps(mapped, copied), [_Part(queries, weights)]
        return _Steps(mapped, copied), [_Part(queries[start : start + together], None) for start in starts]

    def _blocks(self, steps: _Steps, allowed: Bool[np.ndarray, "count"] | None) -> Iterator[_Block]:
        """Yield the rows that may be found, some at a time."""
        for segment, is_full in zip(self._segments, self._is_full, strict=True):
            if is_full and allowed is None:
                for start in range(0, len(segment.vectors), steps.mapped):
                    some = slice(start, start + steps.mapped)
                    yield _Block(segment.vectors[some], segment.positions[some], None)
                continue
            usable = segment.positions >= 0
            if allowed is not None:
                usable &= allowed[segment.positions]
            rows = np.flatnonzero(usable)
            if 2 * len(rows) < len(usable):  # few: only these are read
                for start in range(0, len(rows), steps.copied):
                    few = rows[start : start + steps.copied]
                    yield _Block(segment.vectors[few], segment.positions[few], None)
                continue
            for start in range(0, len(usable), steps.mapped):
                first, last = np.searchsorted(rows, [start, start + steps.mapped])
                if first < last:
                    here = rows[first:last]
                    some = slice(start, start + steps.mapped)
                    yield _Block(segment.vectors[some], segment.positions[here], here - start)

    def _improved(
        self, best: Int[Tensor, "Q j"], block: _Block, part: _Part, top_k: int
    ) -> Int[Tensor, "Q k"]:
        """Return the best of what was seen before and of a block."""
        scores, margin = self._scores(block, part)
        lowest, highest = float(scores.numpy().min()), float(scores.numpy().max())
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            self._refuse(block)
        margin *= max(1.0, highest, -lowest) * part.scale
        floor = torch.full((part.count,), -torch.inf)
        if best.shape[1] == top_k:
            floor = unpack(best[:, -1:])[0][:, 0]
        places = promising(scores.numpy(), floor.numpy() - margin, margin, top_k)
        if not len(places):
            return best
        exact = self._exact(block.rows(places), part)
        new = largest(pack(exact, torch.from_numpy(block.positions[places]).long()), top_k)
        return largest(torch.cat([best, new], dim=1), top_k)

    def _scores(self, block: _Block, part: _Part) -> tuple[Float[Tensor, "n Q"], float]:
        """Return scores in the precision of the processor, and by how much they may be off."""
        margin = MARGIN
        vectors = torch.from_numpy(block.vectors)
        if self._inner:
            products, margin = inner_products(vectors.flatten(0, 1), part.flat)
            sets = *vectors.shape[:2], *part.queries.mask.shape
            if sets[1] * sets[3] > 1:
                products = products.view(sets).amax(dim=(1, 3))
            scores = part.weighted(products)
        else:
            scores = part.weighted(self._score(_items(vectors.float()), part.queries))
        return (scores if block.chosen is None else scores[torch.from_numpy(block.chosen)]), margin

    def _exact(self, vectors: Tensor, part: _Part) -> Float[Tensor, "Q n"]:
        """Return scores that do not depend on what else is scored."""
        try:
            scores = self._score(_items(vectors.double()), part.in_double)
        except RuntimeError:  # a similarity of one's own, whose weights are in single precision
            scores = self._score(_items(vectors.float()), part.queries)
        return part.weighted(scores.double()).T.float()

    def _refuse(self, block: _Block) -> NoReturn:
        """Say whose fault a score is that is not finite: it would rank first."""
        vectors = block.rows(np.arange(len(block.positions)))
        bad = (~vectors.isfinite().all(dim=(1, 2))).nonzero().flatten().tolist()
        if not bad:
            raise ModelError(
                "a score is NaN or infinite, so the images cannot be ranked: check the query and the weights "
                "of the model, one of which gives such numbers"
            )
        position = int(block.positions[bad[0]])
        name = self._names[position] if self._names else f"item {position}"
        raise IndexFormatError(
            f"the embedding of {name} in the index holds NaN or infinite numbers, so the images cannot be ranked: run "
            f"'openvse index' again"
        )


class _Part:
    """Queries that are scored together, and how the parts of compound ones are joined."""

    def __init__(self, queries: EmbeddingSet, weights: Float[Tensor, "Q P"] | None) -> None:
        self.queries, self._weights = queries, weights
        self.count = len(queries) if weights is None else len(weights)
        self.in_double = EmbeddingSet(queries.vectors.double(), queries.mask)
        self.scale = 1.0 if weights is None else max(1.0, float(weights.abs().sum(dim=1).max()))

    @property
    def flat(self) -> Float[Tensor, "M D"]:
        """The embeddings of all queries; a masked one is replaced by another of its query, which changes no maximum."""
        mask = self.queries.mask
        places = torch.where(mask, torch.arange(mask.shape[1]), mask.int().argmax(dim=1, keepdim=True))
        return self.queries.vectors.gather(1, places.unsqueeze(2).expand_as(self.queries.vectors)).flatten(
            0, 1
        )

    def weighted(self, scores: Float[Tensor, "n P"]) -> Float[Tensor, "n Q"]:
        """Join the scores of the parts."""
        return scores if self._weights is None else scores @ self._weights.to(scores.dtype).T


def _items(vectors: Float[Tensor, "n K D"]) -> EmbeddingSet:
    return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))
