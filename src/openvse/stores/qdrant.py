"""Points in a collection of a Qdrant server or cluster, through ``qdrant-client``."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from jaxtyping import Float, Int
from qdrant_client import QdrantClient, models

from openvse.errors import EngineError
from openvse.stores.engine_choice import PLACE, public_url, secrets_in, without_secrets
from openvse.stores.points import Facts, Within
from openvse.stores.qdrant_filter import PAYLOAD_INDEXES, filter_of
from openvse.stores.served_store import ServedStore, facts_of, sets_of

KEY_VARIABLE = "OPENVSE_QDRANT_API_KEY"

_POINTS = 256  # in a request, which a server limits to 32 MiB
_WAIT_S = 60
_NOTES = "openvse_notes"  # the collection of what the others say of themselves
_HERE = ("localhost", "127.0.0.1", "::1")

_logger = logging.getLogger(__name__)


class QdrantStore(ServedStore):
    """A collection of points, whose distance is the inner product.

    The number of a point is the key of its item times K, plus the place of the embedding.

    Args:
        url: of the server; a password or an ``api_key`` in it is the key. ``:memory:`` is the client's own mode for
            tests, which lasts as long as the process.
        collection: its name.
        num_embeddings: K.
        dim: D.
        create: make the collection where there is none.
    """

    def __init__(
        self, url: str, collection: str, num_embeddings: int, dim: int, *, create: bool = False
    ) -> None:
        self._url, self._collection = url, collection
        self._num_embeddings = num_embeddings
        self._is_local = url == ":memory:"
        self._note_number = int(hashlib.sha256(collection.encode()).hexdigest()[:15], 16)
        with self._errors():
            self._client = _in_memory(os.getpid()) if self._is_local else _connected(url)
            exists = self._client.collection_exists(collection)
            if not exists and create:
                self._create(dim)
        if not exists and not create:
            raise EngineError(
                f"the Qdrant server {public_url(url)} has no collection {collection}: run 'openvse index' again, which "
                f"makes it"
            )

    def put(
        self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[Facts]
    ) -> None:
        """Add items; those whose keys are there are replaced."""
        numbers = cast("list[models.ExtendedPointId]", self._numbers(keys))
        flat = vectors.reshape(-1, vectors.shape[2]).astype(np.float32)
        payloads = [each.payload() for each in facts for _ in range(self._num_embeddings)]
        with self._errors():
            for start in range(0, len(flat), _POINTS):
                some = slice(start, start + _POINTS)
                batch = models.Batch(ids=numbers[some], vectors=flat[some].tolist(), payloads=payloads[some])
                self._client.upsert(self._collection, batch, wait=True)

    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        """Remove items."""
        numbers = cast("list[models.ExtendedPointId]", self._numbers(keys))
        with self._errors():
            for start in range(0, len(numbers), 10_000):
                selected = models.PointIdsList(points=numbers[start : start + 10_000])
                self._client.delete(self._collection, selected, wait=True)

    def nearest(
        self, queries: Float[np.ndarray, "M D"], count: int, within: Within
    ) -> list[Int[np.ndarray, "_"]]:
        """Return the keys of the best points for each query."""
        clause = filter_of(within)
        asked = None if clause is None else models.Filter.model_validate(clause)
        # The breadth of the search; a few more than the default find what a filter would hide.
        params = models.SearchParams(hnsw_ef=max(128, count))
        requests = [
            models.QueryRequest(query=one.tolist(), limit=count, filter=asked, params=params)
            for one in queries
        ]
        with self._errors():
            answers = self._client.query_batch_points(self._collection, requests)
        return [
            np.array([int(point.id) for point in answer.points], np.int64) // self._num_embeddings
            for answer in answers
        ]

    def num_points(self) -> int:
        """Return how many points the collection holds."""
        with self._errors():
            return self._client.count(self._collection, exact=True).count

    def finish(self) -> None:
        """Do nothing: the server makes its graph by itself, and answers meanwhile."""

    def drop(self) -> None:
        """Remove the collection."""
        with self._errors():
            self._client.delete_collection(self._collection)
            if self._client.collection_exists(_NOTES):
                self._client.delete(_NOTES, models.PointIdsList(points=[self._note_number]), wait=True)

    def write_note(self, said: dict[str, Any]) -> None:
        """Keep the note as a point of a collection for such notes, which every version of the server has."""
        with self._errors():
            if not self._client.collection_exists(_NOTES):
                alone = models.VectorParams(size=1, distance=models.Distance.DOT)
                self._client.create_collection(_NOTES, vectors_config=alone)
            payload = {"place": self._collection, **said}
            point = models.PointStruct(id=self._note_number, vector=[1.0], payload=payload)
            self._client.upsert(_NOTES, [point], wait=True)

    def note(self) -> dict[str, Any] | None:
        """Return the note; None where there is none."""
        with self._errors():
            if not self._client.collection_exists(_NOTES):
                return None
            found = self._client.retrieve(_NOTES, [self._note_number])
        said = (found[0].payload if found else None) or {}
        return {name: value for name, value in said.items() if name != "place"} or None

    def facts(self, keys: Int[np.ndarray, "n"]) -> dict[int, Facts]:
        """Return the payloads of the first points of items."""
        firsts = (keys * self._num_embeddings).tolist()
        with self._errors():
            found = self._client.retrieve(self._collection, firsts)
        return {int(each.id) // self._num_embeddings: facts_of(each.payload) for each in found}

    def vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        """Return the embeddings of items."""
        with self._errors():
            found = self._client.retrieve(
                self._collection, self._numbers(keys), with_payload=False, with_vectors=True
            )
        return sets_of(
            [int(each.id) for each in found], [each.vector for each in found], self._num_embeddings
        )

    def some(self, count: int) -> list[Facts]:
        """Return the payloads of some items."""
        with self._errors():
            found, _ = self._client.scroll(self._collection, limit=count * self._num_embeddings)
        return [facts_of(each.payload) for each in found if int(each.id) % self._num_embeddings == 0]

    def count(self, within: Within) -> int:
        """Return how many points pass the filter, roughly."""
        clause = filter_of(within)
        asked = None if clause is None else models.Filter.model_validate(clause)
        with self._errors():
            return self._client.count(self._collection, count_filter=asked, exact=False).count

    def key_of(self, item_id: str) -> int | None:
        """Return the key of an item; the server reads all payloads, as paths have no index."""
        same = models.FieldCondition(key="path", match=models.MatchValue(value=item_id))
        with self._errors():
            found, _ = self._client.scroll(
                self._collection, models.Filter(must=[same]), limit=1, with_payload=False
            )
        return int(found[0].id) // self._num_embeddings if found else None

    def close(self) -> None:
        """Let go of the connection."""
        if not self._is_local:
            self._client.close()

    def _create(self, dim: int) -> None:
        vectors = models.VectorParams(size=dim, distance=models.Distance.DOT, on_disk=True)
        self._client.create_collection(self._collection, vectors_config=vectors)
        if self._is_local:  # it has no payload indexes
            return
        for field, schema in PAYLOAD_INDEXES.items():
            kind = models.PayloadSchemaType(schema)
            self._client.create_payload_index(self._collection, field, kind, wait=True)

    def _numbers(self, keys: Int[np.ndarray, "n"]) -> list[int]:
        each: list[int] = (
            (keys[:, np.newaxis] * self._num_embeddings + np.arange(self._num_embeddings)).ravel().tolist()
        )
        return each

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _errors_of(self._url):
            yield


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # the client's errors, and those of its HTTP library, have no common class
        raise EngineError(
            f"the Qdrant server {public_url(url)} cannot be used ({without_secrets(str(error), url)}): check that it "
            f"runs and that {KEY_VARIABLE} holds its key, or search with --engine exact"
        ) from None


def places(url: str) -> list[str]:
    """Return the collections of a server that openvse has made.

    Raises:
        EngineError: it cannot be reached.
    """
    with _errors_of(url):
        client = _in_memory(os.getpid()) if url == ":memory:" else _connected(url)
        names = [each.name for each in client.get_collections().collections]
        if url != ":memory:":
            client.close()
    return sorted(name for name in names if PLACE.fullmatch(name))


@functools.cache
def _in_memory(process: int) -> QdrantClient:
    return QdrantClient(":memory:")


def _connected(url: str) -> QdrantClient:
    """Connect to a server; the key comes from the URL or the environment, and never stays in the URL."""
    found = secrets_in(url)
    key = found[-1] if found else os.environ.get(KEY_VARIABLE) or None
    parts = urlsplit(public_url(url))
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if key and parts.scheme == "http" and parts.hostname not in _HERE:
        _logger.warning("the key of %s goes over a connection that is not encrypted: use https", bare)
    with warnings.catch_warnings():  # of the key, which is said above
        warnings.simplefilter("ignore", UserWarning)
        return QdrantClient(url=bare, api_key=key, timeout=_WAIT_S, check_compatibility=False)
