"""What finds the nearest embeddings: the interface of search libraries, and that of openvse's own engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.index.conditions import Condition

if TYPE_CHECKING:  # an exported model is searched without PyTorch
    from torch import Tensor

    from openvse.types import EmbeddingSet


@runtime_checkable
class VectorBackend(Protocol):
    """Finds the items that score best; the least that a search library of your own must do.

    One that compares inner products of single embeddings and takes the largest of each item ranks as the model does,
    because only models whose similarity is ``indexable`` have an index.
    """

    def search(self, queries: EmbeddingSet, top_k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query."""
        ...


@runtime_checkable
class FilteringBackend(VectorBackend, Protocol):
    """A backend that also takes compound queries, and looks at some of the items alone; see ``Engine.search_some``."""

    def search_some(
        self,
        queries: EmbeddingSet,
        top_k: int,
        *,
        weights: Float[Tensor, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
    ) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores and positions of the best allowed items."""
        ...


class Engine(ABC):
    """One of the engines that an index can have; ``tests/search/test_engine_contract.py`` is the contract of all.

    Attributes:
        name: as the command line and the index' manifest have it.
        is_exact: whether it always finds the best items; an approximate one may miss some, and those that it finds
            have the exact scores and stand in the exact order, too.
    """

    name: str = ""
    is_exact: bool = False

    def search(self, queries: EmbeddingSet, top_k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query.

        Raises:
            IndexFormatError: an item's embedding holds NaN or infinite numbers; it is named.
            ModelError: a query's does, or the similarity yields such scores.
        """
        return self.search_some(queries, top_k)

    @abstractmethod
    def search_some(
        self,
        queries: EmbeddingSet,
        top_k: int,
        *,
        weights: Float[Tensor, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
        where: Sequence[Condition] = (),
    ) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores and positions of the best allowed items, by score and then by position.

        Args:
            queries: P parts of queries.
            top_k: how many items of each query.
            weights: the score of a query is the sum of the scores of the parts, each times its weight; None where
                every part is a query by itself.
            allowed: which items may be found; None for all.
            where: the conditions that ``allowed`` stands for, for an engine that looks at them itself.
        """

    def close(self) -> None:
        """Let go of files and connections, if it has any; nothing is asked of it afterwards."""
        return
