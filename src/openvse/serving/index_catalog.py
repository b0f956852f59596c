"""One state of an index, as it is served."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from openvse.errors import IndexFormatError
from openvse.index.database import Database
from openvse.media.names import escaped
from openvse.search import ArrayEngine, Index, SearchEngine
from openvse.serving.batching import RememberingModel
from openvse.serving.catalog import About, Catalog, Field, MissingError, fields_of
from openvse.stores.points import Facts, read_metadata

_FIELDS_FROM = 2000


class IndexCatalog(Catalog):
    """An index that was opened, its engine, and its items by number; it never changes.

    Args:
        index: the index, of images.
        model: the model that made it.
        engine: the engine that is wanted: None takes that of the index, and an exported model searches exactly.
        engine_url: of the engine's server, with its secrets.

    Attributes:
        index: the index.

    Raises:
        EngineError: the engine cannot be reached, or is not that of the index.
        IndexFormatError: the index holds sentences, or another model made it.
    """

    def __init__(
        self,
        index: Index,
        model: RememberingModel,
        *,
        engine: str | None = None,
        engine_url: str | None = None,
    ) -> None:
        super().__init__(model, [root.path for root in index.roots])
        manifest = index.manifest
        if manifest.holds != "images":
            raise IndexFormatError(
                f"index {index.path} holds sentences, and a server shows images: give an index of images"
            )
        self.index = index
        self.engine = (
            ArrayEngine(model, index)
            if model.kind is not None
            else SearchEngine(model, index, engine=engine, engine_url=engine_url)
        )
        keys = index.table.keys
        self._key_at = keys
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self.fields = self._find_fields()
        roots = tuple(root.path for root in index.roots)
        shape = manifest.num_embeddings, manifest.dim
        self.about = About(manifest.created, *shape, roots, is_complete=index.is_complete)

    def __len__(self) -> int:
        return len(self.index)

    def position(self, key: int) -> int:
        """Return the position of an item; raise MissingError where the index does not hold it."""
        place = int(np.searchsorted(self._keys, key))
        if place == len(self._keys) or self._keys[place] != key:
            raise MissingError(f"the index holds no item {key}: it may have been removed since")
        return int(self._order[place])

    def key(self, item_id: str) -> int:
        """Return the number of an item; raise MissingError where the index does not hold it."""
        position = self.index.position(item_id)
        if position is None:
            raise MissingError(f"the index holds no item {escaped(item_id)}: give the path below the folder")
        return int(self._key_at[position])

    def id_of(self, key: int) -> str:
        """Return the id of an item: its path below the indexed folder."""
        return self.index.table.ids[self.position(key)]

    def stamp(self, key: int) -> tuple[int, int]:
        """Return time and size of the file of an item."""
        position = self.position(key)
        table = self.index.table
        return int(table.modified_ns[position]), int(table.sizes[position])

    def path_of(self, key: int) -> Path:
        """Return where the file of an item was when it was indexed."""
        return self.index.image_path(self.position(key))

    def facts(self, key: int) -> Facts:
        """Return what is known of an item."""
        name, index = self.id_of(key), self.index
        with Database(index.path / index.manifest.items) as database:
            rows = database.read("SELECT kind, metadata FROM items WHERE key = ?", (key,))
        kind, said = (str(rows[0][0]), rows[0][1]) if rows else ("image", None)
        return Facts(name, kind, *self.stamp(key), read_metadata(said))

    def _find_fields(self) -> tuple[Field, ...]:
        """Return the keys of the users' metadata, from the first items that have any."""
        index = self.index
        sql = (
            "SELECT said.key, CAST(said.value AS TEXT), COUNT(*) AS uses FROM "
            "(SELECT metadata FROM items WHERE metadata IS NOT NULL LIMIT ?) AS some, json_each(some.metadata) AS said "
            "WHERE said.type IN ('text', 'integer', 'real', 'true', 'false') GROUP BY 1, 2 ORDER BY uses DESC"
        )
        with Database(index.path / index.manifest.items) as database:
            rows = database.read(sql, (_FIELDS_FROM,))
        return fields_of([(str(name), str(value)) for name, value, _ in rows])
