"""The small interface of the libraries that find nearest points: an item of K embeddings is K points."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from openvse.index.conditions import Condition

Payload = dict[str, object]

_LARGE = 1 << 62


@dataclass(frozen=True)
class Facts:
    """What a store of points is told of an item beside its embeddings.

    Attributes:
        path: the item's id.
        kind: image, clip or sentence.
        modified_ns: time of the file's last change.
        size: in bytes.
        metadata: what the user says of it.
    """

    path: str
    kind: str
    modified_ns: int
    size: int
    metadata: dict[str, object] = field(default_factory=dict)

    def payload(self) -> Payload:
        """Return them as any server takes them: ``texts`` lists the keys of the metadata that hold a text."""
        return {
            "path": _sendable(self.path),
            "kind": self.kind,
            "date": self.modified_ns / 1e9,
            "size": self.size,
            "meta": _sendable(self.metadata),
            "texts": [_sendable(key) for key, value in self.metadata.items() if _holds_text(value)],
        }


@dataclass(frozen=True)
class Within:
    """Which items are wanted; a store may find others, too, and should leave out as many of these as it can.

    Attributes:
        where: conditions that all wanted items fulfil.
        keys: the keys of all wanted items, rising; None where all are wanted.
    """

    where: tuple[Condition, ...] = ()
    keys: Int[np.ndarray, "n"] | None = None


class PointStore(ABC):
    """Holds the embeddings of items by their keys, and finds those with the largest inner products.

    Items and points are never renamed, so every change can be repeated after an interruption.
    """

    @abstractmethod
    def put(
        self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[Facts]
    ) -> None:
        """Add items; those whose keys are there are replaced."""

    @abstractmethod
    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        """Remove items; those that are not there are none of its concern."""

    @abstractmethod
    def nearest(
        self, queries: Float[np.ndarray, "M D"], count: int, within: Within
    ) -> list[Int[np.ndarray, "_"]]:
        """Return the keys of the items of about the ``count`` best points for each query.

        A key may come several times, as an item has several points.
        """

    @abstractmethod
    def num_points(self) -> int:
        """Return how many points it holds."""

    @abstractmethod
    def finish(self) -> None:
        """Put on the disk what was put and removed, and make the structure that finds it quickly."""

    @abstractmethod
    def drop(self) -> None:
        """Remove everything, also the place itself."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""


def read_metadata(text: object) -> dict[str, object]:
    """Return the user's metadata from the database's JSON; empty where there is none."""
    if not isinstance(text, str):
        return {}
    said = json.loads(text)
    return said if isinstance(said, dict) else {}


def _holds_text(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and any(isinstance(each, str) for each in value)
    )


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
