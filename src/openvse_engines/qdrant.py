"""Points in a collection of a Qdrant server or cluster, through ``qdrant-client``.

The number of a point is the key of its item times K, plus the place of the embedding. Filters are in REST's form.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from jaxtyping import Float, Int
from qdrant_client import QdrantClient, models

from openvse.errors import EngineError
from openvse.stores import STORES, ItemFacts, StoreKind, Within
from openvse.stores.base import CatalogueStore, told_as
from openvse.stores.choice import PLACE, URL_VARIABLE, EngineAddress, is_here, public_url, secrets_in, without_secrets
from openvse_engines.filters import Clause, clauses_of

KEY_VARIABLE = "OPENVSE_QDRANT_API_KEY"

_INDEXES = {"kind": "keyword", "size": "integer", "date": "float", "taken": "float"}

_POINTS = 256  # in a request, which a server limits to 32 MiB
_PORT = 6333
_WAIT_S = 60
_NOTES = "openvse_notes"  # the collection with the notes of all other collections

_logger = logging.getLogger(__name__)


class QdrantStore(CatalogueStore):
    """A collection of points, whose distance is the inner product.

    A password or an ``api_key`` in the URL is the key. See ``VectorStore`` for the arguments.
    """

    def __init__(self, address: EngineAddress, num_embeddings: int, dim: int, *, create: bool = False) -> None:
        self._num_embeddings, url = num_embeddings, address.server
        self._errors, self._collection = partial(_errors_of, url), address.name
        self._note_number = int(hashlib.sha256(address.name.encode()).hexdigest()[:15], 16)
        with self._errors():
            self._client = _connected(url)
            if not (exists := self._client.collection_exists(address.name)) and create:
                vectors = models.VectorParams(size=dim, distance=models.Distance.DOT, on_disk=True)
                self._client.create_collection(address.name, vectors_config=vectors)
                for field, schema in _INDEXES.items():
                    kind = models.PayloadSchemaType(schema)
                    self._client.create_payload_index(address.name, field, kind, wait=True)
        if not exists and not create:
            raise EngineError(f"Qdrant at {address.url} has no collection {address.name}: run 'openvse index' again")

    @classmethod
    def split(cls, word: str) -> tuple[str, str]:
        """Return the URL of the server, with its port, and the collection of ``qdrant://HOST[:PORT][/COLLECTION]``."""
        parts, kind = urlsplit(word), STORES.get("qdrant")
        assert isinstance(kind, StoreKind) and kind.schemes is not None
        if not parts.hostname:
            raise EngineError(f"{public_url(word)} names no engine: give {kind.example}")
        is_ours = parts.scheme.startswith("qdrant")  # in other URLs, the path may lead to the server
        path, _, last = parts.path.rstrip("/").rpartition("/")
        before, place = (path, last) if PLACE.fullmatch(last) or is_ours else (parts.path, "")
        netloc = parts.netloc if parts.port or not is_ours else f"{parts.netloc}:{_PORT}"
        return urlunsplit((kind.schemes[parts.scheme], netloc, before, parts.query, "")), place

    @classmethod
    def places(cls, url: str) -> list[str]:
        with _errors_of(url):
            client = _connected(url)
            names = [each.name for each in client.get_collections().collections]
            client.close()
        return sorted(name for name in names if PLACE.fullmatch(name))

    def put(self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[ItemFacts]) -> None:
        payloads = [each.payload() for each in facts for _ in range(self._num_embeddings)]
        flat = vectors.reshape(-1, vectors.shape[2]).astype(np.float32)
        ids = cast("list[models.ExtendedPointId]", self._numbers(keys))
        with self._errors():
            for start in range(0, len(flat), _POINTS):
                some = slice(start, start + _POINTS)
                batch = models.Batch(ids=ids[some], vectors=flat[some].tolist(), payloads=payloads[some])
                self._client.upsert(self._collection, batch, wait=True)

    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        numbers = cast("list[models.ExtendedPointId]", self._numbers(keys))
        with self._errors():
            for start in range(0, len(numbers), 10_000):
                selected = models.PointIdsList(points=numbers[start : start + 10_000])
                self._client.delete(self._collection, selected, wait=True)

    def nearest(self, queries: Float[np.ndarray, "M D"], count: int, within: Within) -> list[Int[np.ndarray, "_"]]:
        asked = _filter(clauses_of(within.where))
        # The breadth of the search, slightly above the default to find hits that a filter would hide.
        params = models.SearchParams(hnsw_ef=max(128, count))
        requests = [
            models.QueryRequest(query=one.tolist(), limit=count, filter=asked, params=params) for one in queries
        ]
        with self._errors():
            answers = self._client.query_batch_points(self._collection, requests)
            keys = [np.array([int(point.id) for point in one.points], np.int64) for one in answers]
        return [each // self._num_embeddings for each in keys]

    def num_points(self) -> int:
        return self._count((), exact=True)

    def facts(self, keys: Int[np.ndarray, "n"]) -> dict[int, ItemFacts]:
        records = self._retrieve((keys * self._num_embeddings).tolist(), vectors=False)
        return {number // self._num_embeddings: ItemFacts.of_payload(payload) for number, payload in records}

    def vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        """Return the embeddings of items. Incomplete ones are missing."""
        sets: dict[int, dict[int, Any]] = {}
        for number, vector in self._retrieve(self._numbers(keys), vectors=True):
            sets.setdefault(number // self._num_embeddings, {})[number % self._num_embeddings] = vector
        return {
            key: np.array([each[place] for place in range(self._num_embeddings)], np.float32)
            for key, each in sets.items()
            if len(each) == self._num_embeddings
        }

    def some(self, count: int) -> list[ItemFacts]:
        records = self._scroll(count * self._num_embeddings, ())
        return [ItemFacts.of_payload(payload) for number, payload in records if number % self._num_embeddings == 0]

    def count(self, within: Within) -> int:
        """Return how many points pass the filter, roughly."""
        return self._count(clauses_of(within.where), exact=False)

    def key_of(self, item_id: str) -> int | None:
        """Return the key of an item. All payloads are read, because paths have no index."""
        records = self._scroll(1, [{"key": "path", "match": {"value": item_id}}])
        return records[0][0] // self._num_embeddings if records else None

    def finish(self) -> None:
        """Do nothing, because the server makes its graph by itself, and answers meanwhile."""

    def drop(self) -> None:
        with self._errors():
            self._client.delete_collection(self._collection)
            if self._client.collection_exists(_NOTES):
                self._client.delete(_NOTES, models.PointIdsList(points=[self._note_number]), wait=True)

    def write_note(self, note: dict[str, Any]) -> None:
        """Keep the note as a point of a collection for such notes, which every version of the server has."""
        with self._errors():
            if not self._client.collection_exists(_NOTES):
                alone = models.VectorParams(size=1, distance=models.Distance.DOT)
                self._client.create_collection(_NOTES, vectors_config=alone)
            payload = {"place": self._collection, **note}
            point = models.PointStruct(id=self._note_number, vector=[1.0], payload=payload)
            self._client.upsert(_NOTES, [point], wait=True)

    def note(self) -> dict[str, Any] | None:
        with self._errors():
            if not self._client.collection_exists(_NOTES):
                return None
            records = self._client.retrieve(_NOTES, [self._note_number])
        held = (records[0].payload if records else None) or {}
        return {name: value for name, value in held.items() if name != "place"} or None

    def close(self) -> None:
        self._client.close()

    def _numbers(self, keys: Int[np.ndarray, "n"]) -> list[int]:
        numbers = keys[:, np.newaxis] * self._num_embeddings + np.arange(self._num_embeddings)
        return [*map(int, numbers.ravel())]

    def _retrieve(self, numbers: Sequence[int], *, vectors: bool) -> list[tuple[int, Any]]:
        with self._errors():
            records = self._client.retrieve(self._collection, numbers, with_payload=not vectors, with_vectors=vectors)
        return [(int(each.id), each.vector if vectors else each.payload) for each in records]

    def _scroll(self, count: int, clauses: Sequence[Clause]) -> list[tuple[int, Any]]:
        with self._errors():
            records, _ = self._client.scroll(self._collection, _filter(clauses), limit=count)
        return [(int(each.id), each.payload) for each in records]

    def _count(self, clauses: Sequence[Clause], *, exact: bool) -> int:
        with self._errors():
            return self._client.count(self._collection, count_filter=_filter(clauses), exact=exact).count


def _filter(clauses: Sequence[Clause]) -> models.Filter | None:
    return models.Filter.model_validate({"must": clauses}) if clauses else None


def _errors_of(url: str) -> AbstractContextManager[None]:
    return told_as(
        lambda said: (
            f"Qdrant at {public_url(url)} cannot be used ({without_secrets(said, url):.400}): check that it runs, that "
            f"{KEY_VARIABLE} holds its key and --engine or {URL_VARIABLE} its URL, or search with --engine exact"
        )
    )


def _connected(url: str) -> QdrantClient:
    """Connect to a server. The key comes from the URL, or otherwise from the environment."""
    secrets = secrets_in(url)
    key = secrets[-1] if secrets else os.environ.get(KEY_VARIABLE) or None
    parts = urlsplit(public_url(url))
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if key and parts.scheme == "http" and not is_here(url):
        _logger.warning("the key of %s goes over a connection that is not encrypted: use https", bare)
    with warnings.catch_warnings():  # about the key, logged above
        warnings.simplefilter("ignore", UserWarning)
        return QdrantClient(url=bare, api_key=key, timeout=_WAIT_S, check_compatibility=False)
