"""Conditions as tests of payloads, for the stores whose server checks them (``ItemFacts.payload``)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC

from openvse.indexing.conditions import Condition, forms_of
from openvse.indexing.words import folded
from openvse.stores.base import text_of

Clause = dict[str, object]
"""A test of a payload, as the REST interface of Qdrant writes it: a ``key`` with the ``match`` or ``range`` of its
value, or of one of its values. Several tests form a list, of which one ``should`` be passed."""

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_RANGES = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


def clauses_of(where: Sequence[Condition]) -> list[Clause]:
    """Return tests that every item passes which fulfils the conditions.

    Others may pass, too: patterns, parts of a text and negations are left to the caller.
    """
    return [clause for each in where for clause in _clauses(each)]


def _clauses(condition: Condition) -> Sequence[Clause]:
    match condition.field:
        case "kind" if condition.operator == "=":
            return [{"key": "kind", "match": {"value": condition.value}}]
        case "size" if condition.operator != "!=":
            (value,) = condition.sql()[1]
            is_equal = condition.operator == "="
            limits = {"gte": value, "lte": value} if is_equal else {_RANGES[condition.operator]: value}
            return [{"key": "size", "range": limits}]
        case "date" | "taken":
            return _on_date(condition)
        case "kind" | "path" | "near" | "text" | "size":
            return []
    either = [clause for key in forms_of(condition.key) for clause in _on_metadata(condition, key)]
    return either if len(either) < 2 else [{"should": either}]


def _on_date(condition: Condition) -> Sequence[Clause]:
    """Return the tests of an item's dates: the photo's and, for ``date``, the metadata's and the file's."""
    if condition.operator == "!=":
        return []
    bounds = [(name, bound) for name, bound in zip(("gte", "lte"), condition.span(), strict=True) if bound]
    spare = {"gte": -1, "lte": 1}  # seconds, as the payload's are rounded
    taken = {name: bound.replace(tzinfo=UTC).timestamp() + spare[name] for name, bound in bounds}
    clauses: list[Clause] = [{"key": "taken", "range": taken}]
    if condition.field == "date":
        changed = {name: bound.timestamp() + spare[name] for name, bound in bounds}
        clauses.append({"key": "date", "range": changed})
        # The metadata's own date is left to the caller.
        clauses.append({"key": 'meta."date"', "range": {"gte": 0}})
        clauses.append({"key": "texts", "match": {"value": "date"}})
    return [{"should": clauses}]


def _on_metadata(condition: Condition, key: str) -> Sequence[Clause]:
    """Return clauses one of which every wanted item passes, or none where a server would answer in another way."""
    path, value = f'meta."{key}"', condition.value
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    # The database compares texts with numbers, too, which no server does. So every item with a text passes.
    has_text: Clause = {"key": "texts", "match": {"value": key}}
    if math.isinf(number) or (condition.operator == "=" and value == "null"):
        return []
    if condition.operator == "=":
        if condition.is_date or not math.isnan(number):  # a text may be the same date or number
            same: Clause = {"key": path, "range": {"gte": number, "lte": number}}
            return [has_text] if math.isnan(number) else [same, has_text]
        text: Clause = {"key": "texts", "match": {"value": text_of(key, value)}}
        truth: Clause = {"key": path, "match": {"value": folded(value) == "true"}}
        return [text, truth] if condition.is_truth else [text]
    if condition.operator in _RANGES and not math.isnan(number):
        ranged: Clause = {"key": path, "range": {_RANGES[condition.operator]: number}}
        return [ranged, has_text]
    return []
