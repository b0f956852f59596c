"""What an engine holds of an index, as the index remembers it: the keys of items, and a stamp of each."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Int

from openvse.files import replacing

_UNKNOWN = -1
_EMBEDDINGS = 0xFFFFFFFF


@dataclass(frozen=True)
class EngineState:
    """What an engine holds, or might hold.

    Before a change, the items that it concerns are noted as unknown, so that after an interruption they are put or
    removed once more.

    Attributes:
        keys: of the items, rising.
        stamps: what was put of each: the checksum of its embeddings in the lower half, that of its metadata in the
            upper; -1 where it is unknown whether it was put.
    """

    keys: Int[np.ndarray, "n"]
    stamps: Int[np.ndarray, "n"]

    @classmethod
    def empty(cls) -> EngineState:
        """Return the state of an engine that holds nothing."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def read(cls, path: Path) -> EngineState:
        """Read a state; an empty one where there is none, or a damaged one: everything is put again."""
        try:
            noted = np.load(path, allow_pickle=False)
            if noted.dtype != np.int64 or noted.ndim != 2 or len(noted) != 2:
                return cls.empty()
            return cls(noted[0], noted[1])
        except (OSError, ValueError, EOFError):
            return cls.empty()

    def write(self, path: Path) -> None:
        """Write it so that the file is always complete."""
        content = io.BytesIO()
        np.save(content, np.stack([self.keys, self.stamps]))
        with replacing(path) as partial:
            partial.write_bytes(content.getvalue())

    def doubted(self, keys: Int[np.ndarray, "m"]) -> EngineState:
        """Return the state with some items, which it may hold already, noted as unknown."""
        return self.changed(keys, np.full(len(keys), _UNKNOWN, np.int64))

    def changed(self, keys: Int[np.ndarray, "m"], stamps: Int[np.ndarray, "m"]) -> EngineState:
        """Return the state with other stamps of some items."""
        rest = ~np.isin(self.keys, keys)
        joined = np.concatenate([self.keys[rest], keys])
        order = np.argsort(joined)
        return EngineState(joined[order], np.concatenate([self.stamps[rest], stamps])[order])

    def without(self, keys: Int[np.ndarray, "m"]) -> EngineState:
        """Return the state without some items."""
        rest = ~np.isin(self.keys, keys)
        return EngineState(self.keys[rest], self.stamps[rest])

    def stamps_of(self, keys: Int[np.ndarray, "m"]) -> Int[np.ndarray, "m"]:
        """Return the stamps of some items; -1 for those that are not held."""
        if not len(self.keys):
            return np.full(len(keys), _UNKNOWN, np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: np.ndarray = np.where(self.keys[places] == keys, self.stamps[places], _UNKNOWN)
        return found

    def holds(self, keys: Int[np.ndarray, "m"], checksums: Int[np.ndarray, "m"]) -> Bool[np.ndarray, "m"]:
        """Return which items the engine holds with these checksums of their embeddings."""
        stamps = self.stamps_of(keys)
        held: np.ndarray = (stamps != _UNKNOWN) & ((stamps & _EMBEDDINGS) == checksums)
        return held


def stamp(checksum: int, metadata: object) -> int:
    """Return the stamp of an item; never -1."""
    said = 0 if not isinstance(metadata, str) else crc32(metadata.encode()) & 0x7FFFFFFF
    return (said << 32) | (checksum & _EMBEDDINGS)
