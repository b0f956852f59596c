"""Conditions in the words of Qdrant's filters, as its REST interface has them; both of its libraries take these."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from openvse.index.conditions import Condition
from openvse.stores.points import Within

Clause = dict[str, object]

PAYLOAD_INDEXES = {"kind": "keyword", "size": "integer", "date": "float"}

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_RANGES = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


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
        case "size" | "date":
            return _on_number(condition)
        case "kind" | "path":
            return []
    return _on_metadata(condition, condition.field.removeprefix("meta."))


def _on_number(condition: Condition) -> Sequence[Clause]:
    """Return the range of a size or a date by the numbers that the database would be given."""
    sql, values = condition.sql()
    if condition.operator == "!=":
        return []
    if condition.field == "size":
        (value,) = values
        limits: dict[str, object] = (
            {"gte": value, "lte": value}
            if condition.operator == "="
            else {_RANGES[condition.operator]: value}
        )
        return [{"key": "size", "range": limits}]
    seconds = [float(str(value)) / 1e9 for value in values]
    if condition.operator == "=":
        limits = {"gte": seconds[0] - 1, "lte": seconds[1] + 1}  # the payload's seconds are rounded
    elif ">" in sql:
        limits = {"gte": seconds[0] - 1}
    else:
        limits = {"lte": seconds[0] + 1}
    return [{"key": "date", "range": limits}]


def _on_metadata(condition: Condition, key: str) -> Sequence[Clause]:
    path, value = f'meta."{key}"', condition.value
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    if math.isinf(number) or (condition.operator == "=" and value == "null"):
        return []
    if condition.operator == "=":
        if value in ("true", "false"):
            return [{"key": path, "match": {"value": value == "true"}}]
        text: Clause = {"key": path, "match": {"value": value}}
        same: Clause = {"key": path, "range": {"gte": number, "lte": number}}
        return [text if math.isnan(number) else {"should": [text, same]}]
    if condition.operator in _RANGES and not math.isnan(number):
        # Texts are compared, too, by the database, which no filter of Qdrant does: whoever has one passes.
        ranged: Clause = {"key": path, "range": {_RANGES[condition.operator]: number}}
        return [{"should": [ranged, {"key": "texts", "match": {"value": key}}]}]
    return []
