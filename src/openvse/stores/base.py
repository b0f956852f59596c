"""Vector stores: one interface to libraries of nearest-neighbour search. An item of K embeddings is K points."""

from __future__ import annotations

import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import EngineError, MissingItemError, OpenVSEError
from openvse.files import parse_json
from openvse.indexing.conditions import Condition
from openvse.indexing.database import FOLLOW_LINKS, Root, taken_at
from openvse.indexing.index import Index
from openvse.indexing.words import folded
from openvse.media.matching import composed
from openvse.media.names import is_image, is_video_name
from openvse.media.segments import file_of

if TYPE_CHECKING:
    from openvse.stores.choice import EngineAddress

Payload = dict[str, object]

PAYLOADS = 2
"""The form of the payloads, recorded in the note of a place and the stamps of items. Other forms are put again."""

_LARGE = 1 << 62
_LONGEST_TEXT = 100  # characters of a text that servers compare


@dataclass(frozen=True)
class ItemFacts:
    """The facts of an item: all but its embeddings.

    It is an image, a clip or a sentence, and ``path`` is its id.
    """

    path: str
    kind: str
    modified_ns: int
    size: int
    metadata: dict[str, object] = field(default_factory=dict)

    def payload(self) -> Payload:
        """Return them in a form for any server.

        ``texts`` lists the keys of the metadata that hold a text, and key and text as conditions compare them.
        """
        return {
            "path": _sendable(self.path),
            "kind": self.kind,
            "date": self.modified_ns / 1e9,
            "taken": seconds_of(taken_at(self.metadata.get("taken"))),
            "size": self.size,
            "meta": _sendable(self.metadata),
            "texts": [each for key, value in self.metadata.items() for each in _texts(key, value)],
        }

    @classmethod
    def of_payload(cls, payload: Mapping[str, Any] | None) -> ItemFacts:
        """Return the facts in a payload. Whatever is none raises an Exception of Python."""
        held = payload or {}
        meta, numbers = held.get("meta"), (round(float(held.get("date", 0)) * 1e9), int(held.get("size", 0)))
        if max(map(abs, numbers)) >= 2 * _LARGE:
            raise OverflowError("a date or a size has more than 64 bits")
        metadata = dict(meta) if isinstance(meta, dict) else {}
        return cls(str(held.get("path", "")), str(held.get("kind", "image")), *numbers, metadata)


@dataclass(frozen=True)
class Within:
    """The filter of a search. A store applies the parts that it can, because its proposals are filtered again.

    ``keys`` are those of all wanted items, rising. None wants all.
    """

    where: tuple[Condition, ...] = ()
    keys: Int[np.ndarray, "n"] | None = None


class VectorStore(ABC):
    """Holds the embeddings of items by their keys, and finds those with the largest inner products.

    Items and points are never renamed, so every change can be repeated after an interruption. A store only proposes:
    the engine scores its proposals again. ``openvse_testing.check_store`` is the contract.

    ``create`` makes the place where there is none. Otherwise a missing place is an EngineError.
    """

    @abstractmethod
    def __init__(self, address: EngineAddress, num_embeddings: int, dim: int, *, create: bool = False) -> None: ...

    @abstractmethod
    def put(self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[ItemFacts]) -> None:
        """Add items. Known keys are replaced."""

    @abstractmethod
    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        """Remove items. Unknown keys are ignored."""

    @abstractmethod
    def nearest(self, queries: Float[np.ndarray, "M D"], count: int, within: Within) -> list[Int[np.ndarray, "_"]]:
        """Return the keys of the items of about the ``count`` best points for each query.

        A key may come several times, as an item has several points.
        """

    @abstractmethod
    def num_points(self) -> int:
        """Return how many points it holds."""

    @abstractmethod
    def finish(self) -> None:
        """Write all changes to disk, and build the structure for quick searches."""

    @abstractmethod
    def drop(self) -> None:
        """Remove everything, also the place itself."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""


class CatalogueStore(VectorStore):
    """A store that can be searched without the folder of its index, because it also holds facts of its items."""

    @classmethod
    @abstractmethod
    def split(cls, word: str) -> tuple[str, str]:
        """Return the URL of the server, and the place ("" where it is left out), from a URL of a user."""

    @classmethod
    @abstractmethod
    def places(cls, url: str) -> list[str]:
        """Return the places on a server that openvse has made. Raise EngineError if the server cannot be reached."""

    @abstractmethod
    def write_note(self, note: dict[str, Any]) -> None:
        """Keep the note of the index. See ``Note``."""

    @abstractmethod
    def note(self) -> dict[str, Any] | None:
        """Return the note of the index, or None where there is none."""

    @abstractmethod
    def facts(self, keys: Int[np.ndarray, "n"]) -> dict[int, ItemFacts]:
        """Return the facts of items. Unknown keys are left out."""

    @abstractmethod
    def vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        """Return the embeddings of items. Unknown keys are left out."""

    @abstractmethod
    def some(self, count: int) -> list[ItemFacts]:
        """Return the facts of any ``count`` items."""

    @abstractmethod
    def count(self, within: Within) -> int:
        """Return how many points pass the store's own filter, perhaps as an estimate."""

    @abstractmethod
    def key_of(self, item_id: str) -> int | None:
        """Return the key of an item, or None where there is none."""


@dataclass(frozen=True)
class Note:
    """The common facts of the items of a catalogue, with which a store can be searched without its index."""

    model: str
    holds: str
    embeddings: int
    dim: int
    created: str
    roots: tuple[Root, ...]
    follows_links: bool = False

    @classmethod
    def of(cls, index: Index) -> Note:
        """Return the note of an index."""
        manifest = index.manifest
        shape = manifest.num_embeddings, manifest.dim
        with index.database() as database:
            follows = bool(database.setting(FOLLOW_LINKS))
        return cls(manifest.model, manifest.holds, *shape, manifest.created, index.roots, follows)

    def to_json(self) -> dict[str, Any]:
        """Return it in the form for JSON."""
        roots = [
            {**asdict(root), "path": root.path.encode("utf-8", "backslashreplace").decode()} for root in self.roots
        ]
        return {"format": "openvse-engine", "payloads": PAYLOADS, **asdict(self), "roots": roots}

    @classmethod
    def read(cls, written: Mapping[str, Any] | None, place: object) -> Note:
        """Return the note that a place keeps. Raise EngineError if it keeps none, or something else."""
        if written is None:
            raise EngineError(f"{place} does not name its model: run 'openvse index' again with its index")
        check_payloads(written, place)
        try:
            roots = tuple(Root(int(each["number"]), str(each["path"]), str(each["label"])) for each in written["roots"])
            model, holds, created = (str(written[name]) for name in ("model", "holds", "created"))
            embeddings, dim = (int(written[name]) for name in ("embeddings", "dim"))
            if min(embeddings, dim) < 1:
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"the note of {place} is damaged: run 'openvse index' again with its index") from error
        return cls(model, holds, embeddings, dim, created, roots, written.get("follows_links") is True)

    def moved(self, images: Path | None) -> Note:
        """Return it with another place for the first of the folders. None keeps the place."""
        if images is None or not self.roots:
            return self
        first, *others = self.roots
        return replace(self, roots=(replace(first, path=str(images.resolve())), *others))

    def file_of(self, item_id: str) -> Path:
        """Return the place of an item's file when it was indexed."""
        labelled = (root for root in self.roots if root.label and item_id.startswith(f"{root.label}:"))
        root = next(labelled, next((root for root in self.roots if not root.label), None))
        return Path(item_id) if root is None else Path(root.path, root.name_of(file_of(item_id)))

    def shown(self, path: Path) -> Path:
        """Return the real place of an item's file, if it may be read. Raise MissingItemError otherwise.

        It must be an image or a clip by its name and below a root. The index cannot decide this, because somebody else
        may have made it. Where links are followed, the link itself must be below a root.
        """
        try:
            real = path.resolve(strict=True)
            is_file = stat.S_ISREG(real.stat().st_mode)
        except (OSError, RuntimeError, ValueError) as error:
            raise MissingItemError(f"{path.name} is no longer there: index the folder again") from error
        place = path if self.follows_links and ".." not in path.parts else real
        is_media = is_file and (is_image(real.name) or is_video_name(real.name))
        if not is_media or not any(place.is_relative_to(Path(root.path).resolve()) for root in self.roots):
            raise MissingItemError(f"{path.name} is outside of the indexed folders or no image, so it is not shown")
        return real

    def far_roots(self, *folders: Path) -> list[Path]:
        """Return the roots that share no folder with the given ones except the top one, and "/" itself."""
        near = {folder.resolve().parts[:2] for folder in folders}
        roots = [Path(root.path).resolve() for root in self.roots]
        return [each for each in roots if len(each.parts) < 2 or (near and each.parts[:2] not in near)]


@contextmanager
def told_as(tell: Callable[[str], str]) -> Iterator[None]:
    """Raise whatever a server, its client or an odd answer leads to as an EngineError that ``tell`` words."""
    try:
        yield
    except OpenVSEError:
        raise
    except Exception as error:  # they have no common class
        raise EngineError(tell(" ".join(str(error).split()))) from None


def check_payloads(note: Mapping[str, Any] | None, place: object) -> None:
    """Raise EngineError where another openvse filled a place, because conditions would find less there."""
    if note is not None and note.get("payloads") != PAYLOADS:
        raise EngineError(f"the engine {place} was filled by another openvse: run 'openvse index' again with its index")


def read_metadata(text: object) -> dict[str, object]:
    """Return the user's metadata from the database's JSON, empty where there is none."""
    if not isinstance(text, str):
        return {}
    held = parse_json(text)
    return held if isinstance(held, dict) else {}


def seconds_of(date: str | None) -> float | None:
    """Return a date as seconds since 1970 by the same clock, or None for none."""
    return None if date is None else datetime.fromisoformat(f"{date}+00:00").timestamp()


def _texts(key: str, value: object) -> Iterator[str]:
    held = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
    yield from [str(_sendable(key))] * bool(held)
    yield from (text_of(key, each) for each in held)


def text_of(key: str, value: str) -> str:
    """Return the entry of ``texts`` that the items have whose metadata have a text under a key."""
    return str(_sendable(f"{composed(key)}={folded(value)[:_LONGEST_TEXT]}"))


def _sendable(value: object) -> object:
    """Return a value without what servers refuse: broken characters, zero bytes, integers of more than 64 bits."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode().replace("\0", "")
        case bool() | float() | None:
            return value
        case int():
            return value if abs(value) < _LARGE else float(value)
        case list():
            return [_sendable(each) for each in value]
        case dict():
            return {str(_sendable(key)): _sendable(each) for key, each in value.items()}
    return str(value)
