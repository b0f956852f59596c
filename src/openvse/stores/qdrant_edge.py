"""Points in Qdrant Edge: Qdrant's engine in this process, with its data in the index' folder."""

from __future__ import annotations

import json
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import qdrant_edge as edge
from jaxtyping import Float, Int

from openvse.errors import EngineBusyError, EngineError, message_of
from openvse.files import locked, read_text, write_whole
from openvse.stores import StoreAddress, Within
from openvse.stores.qdrant_points import PAYLOAD_INDEXES, Clause, QdrantPoints, filter_of

if TYPE_CHECKING:
    from qdrant_edge import ConditionType, PointId

_POINTS = 4096  # in an update
_NOTE = "openvse.json"
_SCHEMAS = {
    "keyword": edge.PayloadSchemaType.Keyword,
    "integer": edge.PayloadSchemaType.Integer,
    "float": edge.PayloadSchemaType.Float,
}


class QdrantEdgeStore(QdrantPoints):
    """A shard of Qdrant Edge, whose distance is the inner product; see ``Store`` for the arguments.

    Only one process at a time can have a shard open: a second one would damage what the first sees, so a lock in the
    folder keeps it out. Within a process, all stores of a folder share the shard.
    """

    def __init__(self, address: StoreAddress, num_embeddings: int, dim: int, *, create: bool = False) -> None:
        self._folder, self.num_embeddings = address.path, num_embeddings
        if not create and not self._folder.is_dir():
            raise EngineError(
                f"the engine's folder {self._folder} is missing: run 'openvse index' again, which makes it"
            )
        place = str(self._folder.resolve())
        with _opening:
            shared = _shards.get(place)
            if shared is None:
                shared = _Shard(self._folder, dim)
                _shards[place] = shared
        self._shared: _Shard | None = shared

    @classmethod
    def split(cls, word: str) -> tuple[str, str]:
        """Raise EngineError: a shard has no URL."""
        raise EngineError(f"{word}: Qdrant Edge has no URL: give the folder of its shard")

    @classmethod
    def places(cls, url: str) -> list[str]:
        """Return nothing: a shard has no server."""
        return []

    @property
    def _shard(self) -> edge.EdgeShard:
        assert self._shared is not None
        return self._shared.shard

    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        """Remove items. Unknown keys are ignored."""
        with self._errors():
            self._shard.update(edge.UpdateOperation.delete_points(cast("list[PointId]", self._numbers(keys))))

    def nearest(
        self, queries: Float[np.ndarray, "M D"], count: int, within: Within
    ) -> list[Int[np.ndarray, "_"]]:
        """Return the keys of the best points for each query."""
        asked = _filter(filter_of(within))
        params = edge.SearchParams(hnsw_ef=max(128, count))
        with self._errors():
            answers = [
                self._shard.query(
                    edge.QueryRequest(
                        limit=count, query=edge.Query.Nearest(one.tolist()), filter=asked, params=params
                    )
                )
                for one in queries
            ]
        return [
            np.array([int(str(point.id)) for point in answer], np.int64) // self.num_embeddings
            for answer in answers
        ]

    def finish(self) -> None:
        """Make the graph of the new points, and put all on the disk."""
        with self._errors():
            self._shard.optimize()
            self._shard.flush()

    def drop(self) -> None:
        """Remove the shard."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def write_note(self, note: dict[str, Any]) -> None:
        """Keep the note as a file beside the shard."""
        write_whole(self._folder / _NOTE, json.dumps(note, indent=2) + "\n")

    def note(self) -> dict[str, Any] | None:
        """Return the note; None where there is none."""
        try:
            note = json.loads(read_text(self._folder / _NOTE))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def close(self) -> None:
        """Let go of the shard; it is closed when nothing in this process has it any more."""
        self._shared = None

    def _upsert(
        self, numbers: Sequence[int], vectors: Float[np.ndarray, "P D"], payloads: Sequence[Any]
    ) -> None:
        # The library takes NumPy's arrays, which its types do not say.
        rows = (cast("list[float]", row) for row in vectors)
        points = [edge.Point(*each) for each in zip(numbers, rows, payloads, strict=True)]
        with self._errors():
            for start in range(0, len(points), _POINTS):
                some = points[start : start + _POINTS]
                self._shard.update(edge.UpdateOperation.upsert_points(some))

    def _retrieve(self, numbers: Sequence[int], *, vectors: bool) -> list[tuple[int, Any]]:
        with self._errors():
            records = self._shard.retrieve(cast("list[PointId]", numbers), not vectors, vectors)
        return [(int(str(each.id)), each.vector if vectors else each.payload) for each in records]

    def _scroll(self, count: int, clause: Clause | None) -> list[tuple[int, Any]]:
        asked = edge.ScrollRequest(limit=count, filter=_filter(clause), with_payload=True)
        with self._errors():
            records, _ = self._shard.scroll(asked)
        return [(int(str(each.id)), each.payload) for each in records]

    def _count(self, clause: Clause | None, *, exact: bool) -> int:
        with self._errors():
            return self._shard.count(edge.CountRequest(filter=_filter(clause), exact=exact))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _shard_errors(self._folder):
            yield


class _Shard:
    """A shard that this process has open, and the lock that says so."""

    def __init__(self, folder: Path, dim: int) -> None:
        with ExitStack() as opening, _shard_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            opening.enter_context(locked(folder, "the engine's folder", EngineBusyError))
            data = folder / "shard"
            if (data / "segments").is_dir():
                self.shard = edge.EdgeShard.load(str(data))
            else:
                shutil.rmtree(data, ignore_errors=True)
                data.mkdir()
                config = edge.EdgeConfig(vectors=edge.EdgeVectorParams(dim, edge.Distance.Dot))
                self.shard = edge.EdgeShard.create(str(data), config)
                for field, schema in PAYLOAD_INDEXES.items():
                    self.shard.update(edge.UpdateOperation.create_field_index(field, _SCHEMAS[schema]))
            opening.callback(self.shard.close)
            weakref.finalize(self, opening.pop_all().close)


_opening = threading.Lock()
_shards: weakref.WeakValueDictionary[str, _Shard] = weakref.WeakValueDictionary()


@contextmanager
def _shard_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (EngineError, OSError):
        raise
    except Exception as error:  # the library raises nothing else
        raise EngineError(
            f"the engine's folder {folder} cannot be used ({message_of(error, 300)}): search with --engine "
            f"exact, or remove the folder and run 'openvse index' again"
        ) from error


def _filter(clause: Clause | None) -> edge.Filter | None:
    """Return a filter in the library's classes."""
    if clause is None:
        return None
    groups: dict[str, list[ConditionType]] = {
        name: [_condition(each) for each in some] for name, some in clause.items() if isinstance(some, list)
    }
    return edge.Filter(must=groups.get("must"), should=groups.get("should"))


def _condition(clause: Clause) -> edge.FieldCondition | edge.Filter:
    if "key" not in clause:
        nested = _filter(clause)
        assert nested is not None
        return nested
    key, match, limits = str(clause["key"]), clause.get("match"), clause.get("range")
    if isinstance(match, dict):
        return edge.FieldCondition(key, match=edge.MatchValue(match["value"]))
    assert isinstance(limits, dict)
    numbers = {name: float(value) for name, value in limits.items()}
    return edge.FieldCondition(
        key,
        range=edge.RangeFloat(numbers.get("gte"), numbers.get("gt"), numbers.get("lte"), numbers.get("lt")),
    )
