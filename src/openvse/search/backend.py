"""The search for the nearest embeddings: an interface for search libraries, and an exact search without one."""

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
    """Finds the items with the best scores; an approximate search is a class of your own with this one method.

    A search that takes the largest inner product of an item's embeddings ranks items as the model does, because only
    models whose similarity is ``indexable`` have an index.
    """

    def search(self, queries: EmbeddingSet, top_k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query."""
        ...


_LOW = 0xFFFFFFFF


class ExactBackend:
    """Scores every item, block by block over the memory map, and keeps the best ones.

    Equal scores are ordered by position, so that the order of hits never depends on the block size.

    Args:
        vectors: the embeddings of the items, ``[count, K, D]``, in memory or memory-mapped.
        block_values: the largest number of values in a block of embeddings or of scores, which bounds memory.
        score: the model's similarity; the items take the place of the images, the queries the place of the texts.
        names: the names of the items for messages; without names, messages give positions.
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
            IndexFormatError: the embedding of an item holds NaN or infinite numbers; the message names the item.
            ModelError: the embedding of a query holds such numbers, or the similarity returns them.
        """
        count, num_embeddings, dim = self._vectors.shape
        # A block has at least 256 items; as many queries are scored together as fit.
        products = num_embeddings * queries.mask.shape[1]
        together = max(1, self._block_values // (256 * products))
        step = max(1, self._block_values // max(num_embeddings * dim, products * min(together, len(queries))))
        parts = [queries[start : start + together] for start in range(0, len(queries), together)]
        best = [torch.empty(len(part), 0, dtype=torch.int64) for part in parts]
        for start in range(0, count, step):
            block = torch.from_numpy(self._vectors[start : start + step]).float()
            items = EmbeddingSet(block, torch.ones(block.shape[:2], dtype=torch.bool))
            for number, part in enumerate(parts):
                scores = self._score(items, part).T.contiguous()  # copies nothing for a single query
                if not scores.isfinite().all():
                    self._refuse(block, start)
                largest = _largest(_keys(scores, start), top_k)
                best[number] = _largest(torch.cat([best[number], largest], dim=1), top_k)
        return _unpack(torch.cat(best))

    def _refuse(self, block: Float[Tensor, "n K D"], start: int) -> NoReturn:
        """Raise the error for a score that is not finite, and name its cause; such a score would rank first."""
        bad = (~block.isfinite().all(dim=(1, 2))).nonzero().flatten().tolist()
        if not bad:
            raise ModelError(
                "a score is NaN or infinite, so the images cannot be ranked: check the query and the weights "
                "of the model, one of which gives such numbers"
            )
        position = start + bad[0]
        name = self._names[position] if self._names else f"item {position}"
        raise IndexFormatError(
            f"the embedding of {name} in the index holds NaN or infinite numbers, so the images cannot be ranked: run "
            f"'openvse index' again"
        )


def _keys(scores: Float[Tensor, "Q n"], start: int) -> Int[Tensor, "Q n"]:
    """Pack score and position into one integer that sorts by score, then by the lower position.

    The bits of a float, read as an integer, sort like the float. The bits of negative floats sort in reverse, so all
    except the sign are flipped. The score takes the upper half of the key, the inverted position the lower half.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # adding 0 turns -0.0 into 0.0
    high = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    return high + (_LOW - torch.arange(start, start + scores.shape[1]))


def _unpack(keys: Int[Tensor, "Q k"]) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Return the scores and positions that ``_keys`` packed."""
    high = (keys >> 32).int()
    bits = torch.where(high < 0, high ^ 0x7FFFFFFF, high)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


def _largest(keys: Int[Tensor, "Q n"], count: int) -> Int[Tensor, "Q k"]:
    return keys.topk(min(count, keys.shape[1]), dim=1).values
