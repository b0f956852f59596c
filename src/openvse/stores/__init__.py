"""Vector stores, which find the nearest vectors of an index: by name, with their addresses and updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from openvse.errors import EngineError, install
from openvse.lazy import lazy_names
from openvse.registry import Registry
from openvse.stores.base import ItemFacts, VectorStore, Within

if TYPE_CHECKING:
    from openvse.stores.choice import EngineAddress

__all__ = ["STORES", "EngineAddress", "ItemFacts", "StoreKind", "VectorStore", "Within"]

# These use the registry below.
__getattr__, __dir__ = lazy_names(__name__)


@dataclass(frozen=True)
class StoreKind:
    """A registered store, and its facts before its library is imported. A call opens it.

    Attributes:
        opens: the class, or its place, as ``module:Class``.
        extra: the extra of openvse that installs its library. "" where none is needed.
        schemes: the schemes of its URLs, each with the library's name for it. Empty where the data are in a folder.
        example: such a URL.
        container: the field's word for the place of an index on its server.
    """

    opens: type[VectorStore] | str
    extra: str = ""
    schemes: Mapping[str, str] | None = None
    example: str = ""
    container: str = "folder"

    @property
    def store(self) -> type[VectorStore]:
        """The class. Its library is imported here, and EngineError raised if it is not installed."""
        if not isinstance(self.opens, str):
            return self.opens
        module, _, name = self.opens.partition(":")
        try:
            store: type[VectorStore] = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise EngineError(f"{name} needs the package {error.name}: {install(self.extra)}") from error
        return store

    def __call__(self, address: EngineAddress, num_embeddings: int, dim: int, *, create: bool = False) -> VectorStore:
        """Open the store. See ``VectorStore``."""
        return self.store(address, num_embeddings, dim, create=create)


STORES: Registry[VectorStore] = Registry("store", {"int8": StoreKind("openvse.stores.int8:Int8Store")})
"""The stores by the names that an index notes. ``STORES.add(name, StoreKind(...))`` registers one of your own."""


def store_kind(name: str) -> StoreKind:
    """Return a registered store. Raise EngineError where there is none of the name."""
    kind = STORES.get(name) if name in STORES else None
    if not isinstance(kind, StoreKind):
        raise EngineError(f"there is no engine {name}: give one of exact, {', '.join(STORES.names())}")
    return kind


def open_vector_store(address: EngineAddress, shape: tuple[int, int], *, create: bool = False) -> VectorStore:
    """Open the store at an address, for the shape K and D. ``create`` makes its place where there is none."""
    return store_kind(address.engine)(address, *shape, create=create)
