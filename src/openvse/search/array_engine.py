"""The search engine for exported models, which compute with arrays instead of tensors."""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Float

from openvse.index.index import Index
from openvse.runtime.arrays import ArraySet, Kind
from openvse.search.array_backend import ArrayBackend
from openvse.search.backend import VectorBackend
from openvse.search.engine import SearchEngine

__all__ = ["ArrayBackend", "ArrayEngine"]


@runtime_checkable
class ArrayModel(Protocol):
    """What the engine asks of an exported model, or of whatever stands before one, beside embeddings."""

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the model."""
        ...

    @property
    def kind(self) -> Kind | None:
        """How two embeddings are compared."""
        ...


class ArrayEngine(SearchEngine):
    """Finds the images of an index with an exported model, and needs no PyTorch; otherwise a ``SearchEngine``.

    Args:
        model: the exported model; it, or the model that it was exported from, made the index.
        index: what to search.

    Raises:
        IndexFormatError: another model made the index.

    Examples:
        >>> engine = ArrayEngine(OnnxModel("exported"), Index.open("index"))  # doctest: +SKIP
        >>> engine.search(["a dog on a beach"], top_k=3)[0][0].path  # doctest: +SKIP
    """

    def __init__(self, model: ArrayModel, index: Index) -> None:
        self._kind: Kind = model.kind or "inner"
        # The methods have the same meaning, and arrays in the place of tensors.
        super().__init__(cast(Any, model), index)

    def _opened(self, engine: str | None = None, url: str | None = None) -> VectorBackend:
        index = self._index
        swapped = index.manifest.holds == "sentences"
        made = ArrayBackend(index.segments, kind=self._kind, names=index.table.ids, swapped=swapped)
        return cast(VectorBackend, made)

    def _as_set(self, vectors: Float[np.ndarray, "n K D"]) -> Any:
        return ArraySet.full(vectors)

    def _as_weights(self, weights: Float[np.ndarray, "Q P"]) -> Any:
        return weights
