"""What a store of points tells of its items to whoever has no folder of their index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import EngineError
from openvse.index.database import Root
from openvse.index.index import Index
from openvse.media.segments import file_of
from openvse.stores.points import Facts, PointStore, Within

_NUMBERS = ("embeddings", "dim")


@dataclass(frozen=True)
class Note:
    """What an engine's place says of itself, so that it can be searched without the index that filled it.

    Attributes:
        model: fingerprint of the model that made the embeddings.
        holds: ``images`` or ``sentences``.
        embeddings: K.
        dim: D.
        created: when the index was made; UTC, ISO 8601.
        roots: the indexed folders.
    """

    model: str
    holds: str
    embeddings: int
    dim: int
    created: str
    roots: tuple[Root, ...]

    @classmethod
    def of(cls, index: Index) -> Note:
        """Return the note of an index."""
        manifest = index.manifest
        shape = manifest.num_embeddings, manifest.dim
        return cls(manifest.model, manifest.holds, *shape, manifest.created, index.roots)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        roots = [
            {"number": root.number, "path": _text(root.path), "label": root.label} for root in self.roots
        ]
        shape = {"embeddings": self.embeddings, "dim": self.dim}
        return {
            "format": "openvse-engine",
            "model": self.model,
            "holds": self.holds,
            **shape,
            "created": self.created,
            "roots": roots,
        }

    @classmethod
    def read(cls, said: Mapping[str, Any] | None, place: str) -> Note:
        """Return what a place says.

        Raises:
            EngineError: it says nothing, or something else.
        """
        if said is None:
            raise EngineError(
                f"{place} does not say which model made it: run 'openvse index' again with its index, which notes that"
            )
        try:
            roots = tuple(
                Root(int(each["number"]), str(each["path"]), str(each["label"])) for each in said["roots"]
            )
            numbers = [int(said[name]) for name in _NUMBERS]
            texts = [str(said[name]) for name in ("model", "holds", "created")]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"what {place} says of itself cannot be understood: run 'openvse index' again with its index"
            ) from error
        return cls(texts[0], texts[1], numbers[0], numbers[1], texts[2], roots)

    def moved(self, images: Path | None) -> Note:
        """Return it with another place for the first of the folders; None leaves that where it is."""
        if images is None or not self.roots:
            return self
        first, *others = self.roots
        return replace(self, roots=(replace(first, path=str(images.resolve())), *others))

    def file_of(self, item_id: str) -> Path:
        """Return where the file of an item was when it was indexed."""
        labelled = (root for root in self.roots if root.label and item_id.startswith(f"{root.label}:"))
        root = next(labelled, next((root for root in self.roots if not root.label), None))
        return Path(item_id) if root is None else Path(root.path, root.name_of(file_of(item_id)))


class ServedStore(PointStore):
    """A store that also tells what it holds."""

    @abstractmethod
    def write_note(self, said: dict[str, Any]) -> None:
        """Keep what the place is to say of itself."""

    @abstractmethod
    def note(self) -> dict[str, Any] | None:
        """Return what the place says of itself; None where nobody has written it."""

    @abstractmethod
    def facts(self, keys: Int[np.ndarray, "n"]) -> dict[int, Facts]:
        """Return what is known of items; those that are not there are missing."""

    @abstractmethod
    def vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        """Return the embeddings of items; those that are not there are missing."""

    @abstractmethod
    def some(self, count: int) -> list[Facts]:
        """Return what is known of so many items, whichever the store has first."""

    @abstractmethod
    def count(self, within: Within) -> int:
        """Return how many points the store itself would let pass; an estimate where that is quicker."""

    @abstractmethod
    def key_of(self, item_id: str) -> int | None:
        """Return the key of an item; None where it is not there."""


def facts_of(payload: Mapping[str, Any] | None) -> Facts:
    """Return what ``Facts.payload`` told a store."""
    told = payload or {}
    meta = told.get("meta")
    return Facts(
        str(told.get("path", "")),
        str(told.get("kind", "image")),
        round(float(told.get("date", 0)) * 1e9),
        int(told.get("size", 0)),
        dict(meta) if isinstance(meta, dict) else {},
    )


def sets_of(
    numbers: Sequence[int], vectors: Sequence[Any], num_embeddings: int
) -> dict[int, Float[np.ndarray, "K D"]]:
    """Return embeddings by the keys of their items, from the numbers of their points; incomplete items are missing."""
    found: dict[int, dict[int, Any]] = {}
    for number, vector in zip(numbers, vectors, strict=True):
        found.setdefault(number // num_embeddings, {})[number % num_embeddings] = vector
    return {
        key: np.array([each[place] for place in range(num_embeddings)], np.float32)
        for key, each in found.items()
        if len(each) == num_embeddings
    }


def _text(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()
