"""What the two stores of Qdrant share: numbers and payloads of points, and conditions in the words of its filters.

The number of a point is the key of its item times K, plus the place of the embedding. Filters are written as the REST
interface has them; both libraries take these.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from openvse.index.conditions import Condition, forms_of
from openvse.stores.base import CatalogueStore, ItemFacts, Within

Clause = dict[str, object]

PAYLOAD_INDEXES = {"kind": "keyword", "size": "integer", "date": "float", "taken": "float"}

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_RANGES = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


class QdrantPoints(CatalogueStore):
    """A store of Qdrant's points; a subclass says how its library upserts, looks up and scrolls them.

    Attributes:
        num_embeddings: K.
    """

    num_embeddings: int

    @abstractmethod
    def _upsert(
        self, numbers: Sequence[int], vectors: Float[np.ndarray, "P D"], payloads: Sequence[Any]
    ) -> None:
        """Add points; known numbers are replaced."""

    @abstractmethod
    def _retrieve(self, numbers: Sequence[int], *, vectors: bool) -> list[tuple[int, Any]]:
        """Return numbers of points with their vectors, or with their payloads."""

    @abstractmethod
    def _scroll(self, count: int, clause: Clause | None) -> list[tuple[int, Any]]:
        """Return numbers and payloads of some points that pass a filter."""

    @abstractmethod
    def _count(self, clause: Clause | None, *, exact: bool) -> int:
        """Return how many points pass a filter."""

    def put(
        self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[ItemFacts]
    ) -> None:
        """Add items; known keys are replaced."""
        payloads = [each.payload() for each in facts for _ in range(self.num_embeddings)]
        flat = vectors.reshape(-1, vectors.shape[2]).astype(np.float32)
        self._upsert(self._numbers(keys), flat, payloads)

    def num_points(self) -> int:
        """Return how many points it holds."""
        return self._count(None, exact=True)

    def facts(self, keys: Int[np.ndarray, "n"]) -> dict[int, ItemFacts]:
        """Return the payloads of the first points of items."""
        records = self._retrieve((keys * self.num_embeddings).tolist(), vectors=False)
        return {number // self.num_embeddings: ItemFacts.of_payload(payload) for number, payload in records}

    def vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        """Return the embeddings of items; incomplete ones are missing."""
        sets: dict[int, dict[int, Any]] = {}
        for number, vector in self._retrieve(self._numbers(keys), vectors=True):
            sets.setdefault(number // self.num_embeddings, {})[number % self.num_embeddings] = vector
        return {
            key: np.array([each[place] for place in range(self.num_embeddings)], np.float32)
            for key, each in sets.items()
            if len(each) == self.num_embeddings
        }

    def some(self, count: int) -> list[ItemFacts]:
        """Return the payloads of some items."""
        records = self._scroll(count * self.num_embeddings, None)
        return [
            ItemFacts.of_payload(payload) for number, payload in records if number % self.num_embeddings == 0
        ]

    def count(self, within: Within) -> int:
        """Return how many points pass the filter, roughly."""
        return self._count(filter_of(within), exact=False)

    def key_of(self, item_id: str) -> int | None:
        """Return the key of an item; all payloads are read, as paths have no index."""
        records = self._scroll(1, {"must": [{"key": "path", "match": {"value": item_id}}]})
        return records[0][0] // self.num_embeddings if records else None

    def _numbers(self, keys: Int[np.ndarray, "n"]) -> list[int]:
        each: list[int] = (
            (keys[:, np.newaxis] * self.num_embeddings + np.arange(self.num_embeddings)).ravel().tolist()
        )
        return each


def filter_of(within: Within) -> Clause | None:
    """Return a filter that every wanted item passes; None where no condition has one.

    Others may pass, too: patterns and parts of a text, and what is not to be, are left to whoever asked.
    """
    clauses = [clause for each in within.where for clause in _clauses(each)]
    return {"must": clauses} if clauses else None


def _clauses(condition: Condition) -> Sequence[Clause]:
    match condition.field:
        case "kind" if condition.operator == "=":
            return [{"key": "kind", "match": {"value": condition.value}}]
        case "size":
            return _on_size(condition)
        case "date" | "taken":
            return _on_date(condition)
        case "kind" | "path" | "near":
            return []
    either = [clause for key in forms_of(condition.key) for clause in _on_metadata(condition, key)]
    return either if len(either) < 2 else [{"should": either}]


def _on_size(condition: Condition) -> Sequence[Clause]:
    (value,) = condition.sql()[1]
    if condition.operator == "!=":
        return []
    limits = (
        {"gte": value, "lte": value} if condition.operator == "=" else {_RANGES[condition.operator]: value}
    )
    return [{"key": "size", "range": limits}]


def _on_date(condition: Condition) -> Sequence[Clause]:
    """Return that an item was taken within the dates, or perhaps, or its file was changed then if that counts."""
    if condition.operator == "!=":
        return []
    bounds = [(name, bound) for name, bound in zip(("gte", "lte"), condition.span(), strict=True) if bound]
    spare = {"gte": -1, "lte": 1}  # seconds, as the payload's are rounded
    taken = {name: bound.replace(tzinfo=UTC).timestamp() + spare[name] for name, bound in bounds}
    clauses: list[Clause] = [{"key": "taken", "range": taken}]
    if condition.field == "date":
        changed = {name: bound.timestamp() + spare[name] for name, bound in bounds}
        clauses.append({"key": "date", "range": changed})
    return [{"should": clauses}]


def _on_metadata(condition: Condition, key: str) -> Sequence[Clause]:
    """Return clauses one of which every wanted item passes; none where Qdrant would answer in another way."""
    path, value = f'meta."{key}"', condition.value
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    if math.isinf(number) or (condition.operator == "=" and value == "null"):
        return []
    if condition.operator == "=":
        if value in ("true", "false"):
            return [{"key": path, "match": {"value": value == "true"}}]
        texts: list[Clause] = [{"key": path, "match": {"value": form}} for form in forms_of(value)]
        same: Clause = {"key": path, "range": {"gte": number, "lte": number}}
        return texts if math.isnan(number) else [*texts, same]
    if condition.operator in _RANGES and not math.isnan(number):
        # Texts are compared, too, by the database, which no filter of Qdrant does: whoever has one passes.
        ranged: Clause = {"key": path, "range": {_RANGES[condition.operator]: number}}
        return [ranged, {"key": "texts", "match": {"value": key}}]
    return []
