"""Finding the nearest embeddings: the interface for search libraries, and an exact search that needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.errors import IndexFormatError, ModelError
from openvse.evaluation import Scorer
from openvse.functional import set_max_scores
from openvse.types import EmbeddingSet


@runtime_checkable
class VectorBackend(Protocol):
    """Finds the items that score best; an approximate search is another class with this one method.

    One that compares inner products of single embeddings and takes the largest of each item ranks as the model does,
    because only models whose similarity is ``indexable`` have an index.
    """

    def search(self, queries: EmbeddingSet, top_k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query."""
        ...


_LOW = 0xFFFFFFFF


class ExactBackend:
    """Scores every item, block by block over the memory map, and keeps the best of what it has seen.

    Equal scores are ordered by position, whatever the block size: the order of hits never depends on chance.

    Args:
        vectors: embeddings of the items, ``[count, K, D]``, in memory or mapped.
        block_values: numbers of a block, of embeddings and of scores alike; memory is bounded by it.
        score: the model's similarity; the items take the side of the images, the queries that of the texts.
        names: of the items, for messages; positions where there are none.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "count K D"],
        block_values: int = 1 << 22,
        *,
        score: Scorer = set_max_scores,
        names: Sequence[str] = (),
    ) -> None:
        self._vectors, self._block_values, self._score, self._names = vectors, block_values, score, names

    @torch.inference_mode()
    def search(self, queries: EmbeddingSet, top_k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query.

        Raises:
            IndexFormatError: an item's embedding holds NaN or infinite numbers; it is named.
            ModelError: a query's does, or the similarity yields such scores.
        """
        count, num_embeddings, dim = self._vectors.shape
        # At least 256 items a block: queries are taken together as long as their scores fit.
        products = num_embeddings * queries.mask.shape[1]
        together = max(1, self._block_values // (256 * products))
        step = max(1, self._block_values // max(num_embeddings * dim, products * min(together, len(queries))))
        parts = [queries[start : start + together] for start in range(0, len(queries), together)]
        best = [torch.empty(len(part), 0, dtype=torch.int64) for part in parts]
        for start in range(0, count, step):
            block = torch.from_numpy(self._vectors[start : start + step]).float()
            items = EmbeddingSet(block, torch.ones(block.shape[:2], dtype=torch.bool))
            for number, part in enumerate(parts):
                scores = self._score(items, part).T.contiguous()  # of one query, this copies nothing
                if not scores.isfinite().all():
                    self._refuse(block, start)
                largest = _largest(_keys(scores, start), top_k)
                best[number] = _largest(torch.cat([best[number], largest], dim=1), top_k)
        return _unpack(torch.cat(best))

    def _refuse(self, block: Float[Tensor, "n K D"], start: int) -> NoReturn:
        """Say whose fault a score is that is not finite: it would rank first."""
        bad = (~block.isfinite().all(dim=(1, 2))).nonzero().flatten().tolist()
        if not bad:
            raise ModelError(
                "a score is NaN or infinite, so nothing can be ranked: the embedding of a query is, or the weights of "
                "the model are damaged"
            )
        position = start + bad[0]
        name = self._names[position] if self._names else f"item {position}"
        raise IndexFormatError(
            f"the embedding of {name} in the index holds NaN or infinite numbers, so nothing can be ranked: run "
            f"'openvse index' again"
        )


def _keys(scores: Float[Tensor, "Q n"], start: int) -> Int[Tensor, "Q n"]:
    """Pack score and position into one integer that sorts by score, then by the lower position.

    The bits of a float, read as an integer, sort like the float; those of negative floats sort in reverse, so
    all but their sign are flipped. They go into the upper half, the inverted position into the lower.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # adding 0 makes -0.0 and 0.0 one
    high = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    return high + (_LOW - torch.arange(start, start + scores.shape[1]))


def _unpack(keys: Int[Tensor, "Q k"]) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Return the scores and positions that ``_keys`` packed."""
    high = (keys >> 32).int()
    bits = torch.where(high < 0, high ^ 0x7FFFFFFF, high)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


def _largest(keys: Int[Tensor, "Q n"], count: int) -> Int[Tensor, "Q k"]:
    return keys.topk(min(count, keys.shape[1]), dim=1).values
