"""One state of an index, as it is served: its items by their numbers, and what is known of each."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from openvse.errors import DataError, IndexFormatError, OpenVSEError
from openvse.media.names import escaped
from openvse.search import Hit, Index, SearchEngine
from openvse.search.database import Database
from openvse.serving.remembering import RememberingModel

_FIELDS_FROM = 2000
_VALUES_SHOWN = 12
_VALUE_CHARACTERS = 40


class MissingError(OpenVSEError):
    """The index has no such item, or its file may not or cannot leave the server."""


@dataclass(frozen=True)
class Field:
    """A key of the users' metadata.

    Attributes:
        name: the key.
        values: some of its values, the most frequent first.
    """

    name: str
    values: tuple[str, ...]


class Catalog:
    """An index that was opened, its engine, and its items by number; it never changes.

    A number belongs to one item for good. Clients name items by it, and never by a path.

    Args:
        index: the index, of images.
        model: the model that made it.

    Attributes:
        index: the index.
        model: the model.
        engine: searches the index.
        fields: the keys of the users' metadata.

    Raises:
        IndexFormatError: it holds sentences, or another model made it.
    """

    def __init__(self, index: Index, model: RememberingModel) -> None:
        if index.manifest.holds != "images":
            raise IndexFormatError(
                f"index {index.path} holds sentences, and a server shows images: give an index of images"
            )
        self.index, self.model = index, model
        self.engine = SearchEngine(model, index)
        # Formats 1 and 2 know no numbers; such an index only changes by becoming one of format 3.
        keys = np.arange(len(index)) if index.manifest.vectors else index.table.keys
        self._key_at = keys
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._roots = tuple(Path(root.path).resolve() for root in index.roots)
        self.fields = self._find_fields()

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

    def version(self, key: int) -> str:
        """Return a text that changes when the file of an item changes."""
        position = self.position(key)
        table = self.index.table
        return f"{int(table.modified_ns[position]):x}-{int(table.sizes[position]):x}"

    def file(self, key: int) -> Path:
        """Return the file of an item, resolved, if it is below an indexed folder.

        Raises:
            MissingError: the file is gone, is no ordinary file, or a link leads to another place.
        """
        path = self.index.image_path(self.position(key))
        try:
            real = path.resolve(strict=True)
            is_file = stat.S_ISREG(real.stat().st_mode)
        except (OSError, RuntimeError, ValueError) as error:
            raise MissingError(
                f"the file of item {key} is no longer there: index the folder again"
            ) from error
        if not is_file or not any(real.is_relative_to(root) for root in self._roots):
            raise MissingError(
                f"the file of item {key} is outside of the indexed folders, so it is not shown"
            )
        return real

    def describe_hit(self, hit: Hit, was: int | None = None) -> dict[str, Any]:
        """Return a hit for a reply."""
        key = self.key(hit.id)
        return {
            "rank": hit.rank,
            "was": was,
            "score": round(hit.score, 6),
            "probability": hit.probability,
            "key": key,
            "id": escaped(hit.id),
            "thumbnail": f"/api/items/{key}/thumbnail?v={self.version(key)}",
        }

    def describe(self, key: int) -> dict[str, Any]:
        """Return what is known of an item: id, kind, time, size, and the user's metadata."""
        position = self.position(key)
        table, index = self.index.table, self.index
        kind, said = "image", None
        if not index.manifest.vectors:
            with Database(index.path / index.manifest.items) as database:
                rows = database.read("SELECT kind, metadata FROM items WHERE key = ?", (key,))
            kind, said = (str(rows[0][0]), rows[0][1]) if rows else (kind, said)
        changed = datetime.fromtimestamp(int(table.modified_ns[position]) / 1e9, UTC)
        name = index.table.ids[position]
        return {
            "key": key,
            "id": escaped(name),
            "name": escaped(name.rpartition("/")[2]),
            "kind": kind,
            "modified": changed.isoformat(timespec="seconds"),
            "size": int(table.sizes[position]),
            "metadata": readable(json.loads(said)) if isinstance(said, str) else {},
            "file": f"/api/items/{key}/file?v={self.version(key)}",
            "thumbnail": f"/api/items/{key}/thumbnail?v={self.version(key)}",
        }

    def _find_fields(self) -> tuple[Field, ...]:
        """Return the keys of the users' metadata, from the first items that have any."""
        index = self.index
        if index.manifest.vectors:
            return ()
        sql = (
            "SELECT said.key, CAST(said.value AS TEXT), COUNT(*) AS uses FROM "
            "(SELECT metadata FROM items WHERE metadata IS NOT NULL LIMIT ?) AS some, json_each(some.metadata) AS said "
            "WHERE said.type IN ('text', 'integer', 'real', 'true', 'false') GROUP BY 1, 2 ORDER BY uses DESC"
        )
        with Database(index.path / index.manifest.items) as database:
            rows = database.read(sql, (_FIELDS_FROM,))
        values: dict[str, list[str]] = {}
        for name, value, _ in rows:
            some = values.setdefault(str(name), [])
            if len(some) < _VALUES_SHOWN and len(str(value)) <= _VALUE_CHARACTERS:
                some.append(str(value))
        return tuple(
            Field(name, tuple(some))
            for name, some in sorted(values.items())
            if name not in ("file_name", "image", "path", "video", "split") and '"' not in name
        )


def readable(value: Any) -> Any:
    """Return a value of JSON whose texts every client can decode."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {readable(str(key)): readable(each) for key, each in value.items()}
        case list():
            return [readable(each) for each in value]
        case float() if value - value != 0:  # NaN or infinite, which is no JSON
            return str(value)
    return value


def checked_id(item_id: str) -> str:
    """Return an id that a client gave; raise DataError where it is too long for one."""
    if len(item_id) > 4096:
        raise DataError(f"the id has {len(item_id)} characters: give the path of an item of the index")
    return item_id
