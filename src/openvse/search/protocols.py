"""The interface for search libraries. It imports no PyTorch, since ONNX Runtime answers with arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    from torch import Tensor

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


@runtime_checkable
class FilteringBackend(VectorBackend, Protocol):
    """A backend that also takes compound queries, and looks at some of the items alone."""

    def search_some(
        self,
        queries: EmbeddingSet,
        top_k: int,
        *,
        weights: Float[Tensor, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
    ) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores and positions of the best allowed items.

        Args:
            queries: P parts of queries.
            top_k: how many items of each query.
            weights: the score of a query is the sum of the scores of the parts, each times its weight; None where
                every part is a query by itself.
            allowed: which items may be found; None for all.
        """
        ...
