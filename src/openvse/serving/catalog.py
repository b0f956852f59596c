"""What is served: items by their numbers, and what is known of each, whether of an index or of an engine alone."""

from __future__ import annotations

import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from openvse.errors import DataError, OpenVSEError
from openvse.media.names import escaped
from openvse.model import Calibration
from openvse.search import Chances, Condition, Hit, Query
from openvse.serving.batching import RememberingModel
from openvse.stores.points import Facts

_VALUES_SHOWN = 12
_VALUE_CHARACTERS = 40


class MissingError(OpenVSEError):
    """There is no such item, or its file may not or cannot leave the server."""


@dataclass(frozen=True)
class Field:
    """A key of the users' metadata.

    Attributes:
        name: the key.
        values: some of its values, the most frequent first.
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class About:
    """What a catalog is of.

    Attributes:
        created: when the index was made; UTC, ISO 8601.
        embeddings: K.
        width: D.
        roots: the indexed folders.
        is_complete: False while an indexing is under way, or where one was interrupted.
        engine: the URL of the engine, without secrets, or its folder; "" for an index.
    """

    created: str
    embeddings: int
    width: int
    roots: tuple[str, ...]
    is_complete: bool = True
    engine: str = ""


class Searcher(Protocol):
    """What answers queries."""

    @property
    def calibration(self) -> Calibration | None:
        """The curve from a sentence's score to probability; None where there is none."""
        ...

    def chances(
        self,
        where: Sequence[Condition | str] = (),
        expected: float | None = None,
        min_precision: float | None = None,
    ) -> Chances:
        """Return what gives the hits of a sentence their probabilities."""
        ...

    def find(
        self,
        queries: Sequence[Query],
        top_k: int = 10,
        *,
        where: Sequence[Condition | str] = (),
        expected: float | None = None,
    ) -> list[list[Hit]]:
        """Return the best items for queries of several parts."""
        ...

    def close(self) -> None:
        """Let go of what it has open."""
        ...


class Catalog(ABC):
    """What is served at one moment: the engine that searches it, and its items by number.

    A number belongs to one item for good. Clients name items by it, and never by a path.

    Args:
        model: the model that made the embeddings.
        roots: the indexed folders, where they are now; no other file leaves the server.

    Attributes:
        model: the model.
        engine: answers queries.
        fields: the keys of the users' metadata.
        about: what it is of.
    """

    engine: Searcher
    fields: tuple[Field, ...]
    about: About

    def __init__(self, model: RememberingModel, roots: Sequence[str]) -> None:
        self.model = model
        self._roots = tuple(Path(root).resolve() for root in roots)

    @abstractmethod
    def __len__(self) -> int:
        """Return how many items there are."""

    @abstractmethod
    def key(self, item_id: str) -> int:
        """Return the number of an item; raise MissingError where there is none."""

    @abstractmethod
    def facts(self, key: int) -> Facts:
        """Return what is known of an item; raise MissingError where there is none."""

    @abstractmethod
    def stamp(self, key: int) -> tuple[int, int]:
        """Return time (in nanoseconds) and size of the file of an item; raise MissingError where there is none."""

    @abstractmethod
    def id_of(self, key: int) -> str:
        """Return the id of an item, its path below the indexed folder; raise MissingError where there is none."""

    @abstractmethod
    def path_of(self, key: int) -> Path:
        """Return where the file of an item was when it was indexed; raise MissingError where there is no item."""

    def close(self) -> None:
        """Let go of what the engine has open."""
        self.engine.close()

    @property
    def has_images(self) -> bool:
        """Whether one of the indexed folders is on this machine."""
        return any(root.is_dir() for root in self._roots)

    @property
    def captioned(self) -> Path:
        """The folder beside whose images captions may lie."""
        return self._roots[0] if self._roots else Path()

    def version(self, key: int) -> str:
        """Return a text that changes when the file of an item changes."""
        modified_ns, size = self.stamp(key)
        return f"{modified_ns:x}-{size:x}"

    def file(self, key: int) -> Path:
        """Return the file of an item, resolved, if it is below an indexed folder.

        Raises:
            MissingError: the file is gone, is no ordinary file, or a link leads to another place.
        """
        path = self.path_of(key)
        if not self.has_images:
            remedy = "say where the first one is with --images" if self.about.engine else "index them again"
            raise MissingError(f"the indexed folders are not on this machine, so no image is shown: {remedy}")
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
        facts = self.facts(key)
        changed = datetime.fromtimestamp(facts.modified_ns / 1e9, UTC)
        return {
            "key": key,
            "id": escaped(facts.path),
            "name": escaped(facts.path.rpartition("/")[2]),
            "kind": facts.kind,
            "modified": changed.isoformat(timespec="seconds"),
            "size": facts.size,
            "metadata": readable(facts.metadata),
            "file": f"/api/items/{key}/file?v={self.version(key)}",
            "thumbnail": f"/api/items/{key}/thumbnail?v={self.version(key)}",
        }


def fields_of(values: Sequence[tuple[str, str]]) -> tuple[Field, ...]:
    """Return the fields of keys and values, the most frequent first."""
    found: dict[str, list[str]] = {}
    for name, value in values:
        some = found.setdefault(name, [])
        if len(some) < _VALUES_SHOWN and len(value) <= _VALUE_CHARACTERS:
            some.append(value)
    return tuple(
        Field(name, tuple(some))
        for name, some in sorted(found.items())
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
