"""Finding the nearest embeddings: the interface for search libraries, and an exact search that needs none."""

from __future__ import annotations

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
from openvse.search.protocols import FilteringBackend, VectorBackend
from openvse.search.segments import Segment
from openvse.types import EmbeddingSet

__all__ = ["ExactBackend", "FilteringBackend", "VectorBackend"]


_LOW = 0xFFFFFFFF

# By how much a product in single or half precision may differ from the exact one, of embeddings of unit length. In half
# precision, the query and the score are rounded to 11 bits each.
_MARGIN = 2e-5
_HALF_MARGIN = 1.2e-3


@dataclass(frozen=True)
class _Block:
    """Some rows of a segment, those of them that may be found, and the positions of these."""

    vectors: Tensor
    positions: Int[Tensor, "n"]
    chosen: Int[Tensor, "n"] | None


class ExactBackend:
    """Scores every item, block by block over the memory map, and keeps the best of what it has seen.

    Items are ordered by score, then by position. What may be among the best of a block is scored once more in double
    precision and rounded to single, so that neither the order nor a score depends on the blocks, or on the queries that
    are asked together.

    Args:
        vectors: embeddings of the items, ``[count, K, D]``, in memory or mapped; or the segments of an index.
        block_values: numbers of a block, of embeddings and of scores alike; memory is bounded by it.
        score: the model's similarity; the items take the side of the images, the queries that of the texts.
        names: of the items, for messages; positions where there are none.
        inner: whether the score is the largest inner product of two embeddings, so that a product of the processor may
            stand for it; None finds out whether ``score`` is that of ``openvse.functional``.
    """

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

    def search(self, queries: EmbeddingSet, top_k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query.

        Raises:
            IndexFormatError: an item's embedding holds NaN or infinite numbers; it is named.
            ModelError: a query's does, or the similarity yields such scores.
        """
        return self.search_some(queries, top_k)

    @torch.inference_mode()
    def search_some(
        self,
        queries: EmbeddingSet,
        top_k: int,
        *,
        weights: Float[Tensor, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
    ) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores and positions of the best allowed items; see ``FilteringBackend`` and ``search``."""
        step, parts = self._plan(queries, weights)
        best = [torch.empty(part.count, 0, dtype=torch.int64) for part in parts]
        for block in self._blocks(step, allowed):
            for number, part in enumerate(parts):
                best[number] = self._improved(best[number], block, part, top_k)
        return _unpack(torch.cat(best))

    def _plan(self, queries: EmbeddingSet, weights: Tensor | None) -> tuple[int, list[_Part]]:
        """Return how many items to score at once, and the queries that are scored together."""
        num_embeddings, dim = self._segments[0].vectors.shape[1:] if self._segments else (1, 1)
        # At least 256 items a block: queries are taken together as long as their scores fit.
        products = num_embeddings * queries.mask.shape[1]
        together = max(1, self._block_values // (256 * products)) if weights is None else len(queries)
        step = max(1, self._block_values // max(num_embeddings * dim, products * min(together, len(queries))))
        if weights is not None:
            return step, [_Part(queries, weights)]
        return step, [
            _Part(queries[start : start + together], None) for start in range(0, len(queries), together)
        ]

    def _blocks(self, step: int, allowed: Bool[np.ndarray, "count"] | None) -> Iterator[_Block]:
        """Yield the rows that may be found, some at a time."""
        for segment, is_full in zip(self._segments, self._is_full, strict=True):
            for start in range(0, len(segment.vectors), step):
                positions = segment.positions[start : start + step]
                vectors = segment.vectors[start : start + step]
                chosen = None
                if not is_full or allowed is not None:
                    usable = positions >= 0
                    if allowed is not None:
                        usable &= allowed[positions]
                    rows = np.flatnonzero(usable)
                    if not len(rows):
                        continue
                    positions = positions[rows]
                    if 2 * len(rows) < len(usable):  # few: only these are read
                        vectors = vectors[rows]
                    elif len(rows) < len(usable):
                        chosen = torch.from_numpy(rows)
                yield _Block(torch.from_numpy(vectors), torch.from_numpy(positions).long(), chosen)

    def _improved(
        self, best: Int[Tensor, "Q j"], block: _Block, part: _Part, top_k: int
    ) -> Int[Tensor, "Q k"]:
        """Return the best of what was seen before and of a block."""
        scores, margin = self._scores(block, part)
        lowest, highest = torch.aminmax(scores)
        if not (lowest.isfinite() and highest.isfinite()):
            self._refuse(block)
        margin *= max(1.0, float(highest), -float(lowest)) * part.scale
        floor = torch.full((part.count,), -torch.inf)
        if best.shape[1] == top_k:
            floor = _unpack(best[:, -1:])[0][:, 0]
        elif scores.shape[1] >= top_k:
            floor = scores.topk(top_k, dim=1).values[:, -1].float()
        columns = (scores >= (floor - margin).unsqueeze(1)).any(dim=0).nonzero()[:, 0]
        if not len(columns):
            return best
        rows = columns if block.chosen is None else block.chosen[columns]
        exact = self._exact(block.vectors[rows], part)
        largest = _largest(_keys(exact, block.positions[columns]), top_k)
        return _largest(torch.cat([best, largest], dim=1), top_k)

    def _scores(self, block: _Block, part: _Part) -> tuple[Float[Tensor, "Q n"], float]:
        """Return scores in the precision of the processor, and by how much they may be off."""
        margin = _MARGIN
        query = part.single if self._inner else None
        if query is not None:
            flat = block.vectors.flatten(0, 1)
            if flat.dtype == torch.float16:  # half the memory to read, and nothing to convert
                margin, query = _HALF_MARGIN, query.half()
            scores = torch.mv(flat, query).float().view(block.vectors.shape[:2]).amax(dim=1).unsqueeze(0)
        else:
            scores = part.weighted(self._score(_items(block.vectors.float()), part.queries).T.contiguous())
        return (scores if block.chosen is None else scores[:, block.chosen]), margin

    def _exact(self, vectors: Tensor, part: _Part) -> Float[Tensor, "Q n"]:
        """Return scores that do not depend on what else is scored."""
        try:
            scores = self._score(_items(vectors.double()), part.in_double)
        except RuntimeError:  # a similarity of one's own, whose weights are in single precision
            scores = self._score(_items(vectors.float()), part.queries)
        return part.weighted(scores.T.double()).float()

    def _refuse(self, block: _Block) -> NoReturn:
        """Say whose fault a score is that is not finite: it would rank first."""
        vectors = block.vectors if block.chosen is None else block.vectors[block.chosen]
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
        is_single = weights is None and queries.mask.shape == (1, 1)
        self.single = queries.vectors[0, 0] if is_single else None

    def weighted(self, scores: Float[Tensor, "P n"]) -> Float[Tensor, "Q n"]:
        """Join the scores of the parts."""
        return scores if self._weights is None else self._weights.to(scores.dtype) @ scores


def _items(vectors: Float[Tensor, "n K D"]) -> EmbeddingSet:
    return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))


def _keys(scores: Float[Tensor, "Q n"], positions: Int[Tensor, "n"]) -> Int[Tensor, "Q n"]:
    """Pack score and position into one integer that sorts by score, then by the lower position.

    The bits of a float, read as an integer, sort like the float; those of negative floats sort in reverse, so
    all but their sign are flipped. They go into the upper half, the inverted position into the lower.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # adding 0 makes -0.0 and 0.0 one
    high = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    return high + (_LOW - positions)


def _unpack(keys: Int[Tensor, "Q k"]) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Return the scores and positions that ``_keys`` packed."""
    high = (keys >> 32).int()
    bits = torch.where(high < 0, high ^ 0x7FFFFFFF, high)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


def _largest(keys: Int[Tensor, "Q n"], count: int) -> Int[Tensor, "Q k"]:
    return keys.topk(min(count, keys.shape[1]), dim=1).values
