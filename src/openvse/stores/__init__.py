"""The stores of points, one file each; a library is imported when its store is opened."""

from __future__ import annotations

from pathlib import Path

from openvse.errors import EngineError
from openvse.stores.engine_choice import EngineChoice
from openvse.stores.points import PointStore

_EXTRAS = {"qdrant_edge": "qdrant", "qdrant": "qdrant", "pgvector": "pgvector"}


def open_store(
    choice: EngineChoice,
    folder: Path,
    shape: tuple[int, int],
    *,
    url: str | None = None,
    create: bool = False,
) -> PointStore:
    """Open the store of an engine.

    Args:
        choice: the engine, which is not the exact one.
        folder: of the index.
        shape: K and D.
        url: of the server, with its secrets; None takes what ``EngineChoice.address`` finds.
        create: make its place where there is none.

    Raises:
        EngineError: its package is missing, the server cannot be reached or refuses, or the place is missing.
    """
    place, address = folder / choice.place, choice.address(url)
    try:
        if choice.name == "int8":
            from openvse.stores.int8 import Int8Store

            return Int8Store(place, *shape, create=create)
        if choice.name == "qdrant_edge":
            from openvse.stores.qdrant_edge import QdrantEdgeStore

            return QdrantEdgeStore(place, *shape, create=create)
        if choice.name == "qdrant":
            from openvse.stores.qdrant import QdrantStore

            return QdrantStore(address, choice.place, *shape, create=create)
        from openvse.stores.pgvector import PgvectorStore

        return PgvectorStore(address, choice.place, *shape, create=create)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the engine {choice.name} needs the package {error.name}, which is not installed: "
            f"pip install 'openvse[{_EXTRAS.get(choice.name, choice.name)}]'"
        ) from error
