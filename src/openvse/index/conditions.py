"""Conditions on the items of an index: on path, date, size and kind, and on whatever the user says of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
from jaxtyping import Bool

from openvse.errors import DataError
from openvse.index.index import Index

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~", "contains")

_CONDITION = re.compile(
    r'\s*(?:"(?P<quoted>[^"]+)"|(?P<field>[^\s=!<>~"]+))\s*(?P<operator>>=|<=|!=|=|<|>|~|\bcontains\b)\s*(?P<value>.*?)\s*',
    re.DOTALL,
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DATES = ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_KINDS = ("image", "clip", "sentence")
_USERS = "meta."
_PATH = "CASE kind WHEN 'clip' THEN file_of(CAST(id AS BLOB)) ELSE id END"


@dataclass(frozen=True)
class Condition:
    """A condition on items.

    Attributes:
        field: ``path`` (the item's id; for a segment of a clip, that of its file), ``date`` (of the file's last
            change), ``size`` (in bytes), ``kind`` (image, clip or sentence), or a key of the user's ``metadata.jsonl``;
            ``meta.date`` is a key of the user's that is called ``date``.
        operator: one of ``OPERATORS``; ``~`` compares with a pattern with ``*``, ``?`` and ``[...]``.
        value: what to compare with; a list in the metadata fits if one of its values does.

    Examples:
        >>> parse_condition("year >= 2020")
        Condition(field='year', operator='>=', value='2020')
    """

    field: str
    operator: str
    value: str

    def sql(self) -> tuple[str, list[object]]:
        """Return the condition for the database, and the values that are bound to its question marks.

        Raises:
            DataError: the value does not fit the field.
        """
        match self.field:
            case "path":
                return self._on_text(_PATH)
            case "kind":
                if self.operator not in ("=", "!=") or self.value not in _KINDS:
                    raise DataError(
                        f"kind {self.operator} {self.value}: give = or !=, and one of {', '.join(_KINDS)}"
                    )
                return f"kind {self.operator} ?", [self.value]
            case "size":
                return f"size {self._order()} ?", [_bytes(self.value)]
            case "date":
                return self._on_date()
        return self._on_metadata(self.field.removeprefix(_USERS))

    def _order(self) -> str:
        if self.operator in ("~", "contains"):
            raise DataError(
                f"{self.field} is a number, which has no {self.operator}: give one of = != < <= > >="
            )
        return self.operator

    def _on_text(self, column: str) -> tuple[str, list[object]]:
        """Return the condition on a text."""
        match self.operator:
            case "~":
                return f"{column} GLOB ?", [self.value]
            case "contains":
                return f"instr(lower({column}), lower(?)) > 0", [self.value]
        return f"{column} {self.operator} ?", [self.value]

    def _on_date(self) -> tuple[str, list[object]]:
        start, end = _period(self.value)
        match self._order():
            case "=":
                return "modified_ns >= ? AND modified_ns < ?", [start, end]
            case "!=":
                return "NOT (modified_ns >= ? AND modified_ns < ?)", [start, end]
            case ">" | "<=":
                return f"modified_ns {'>=' if self.operator == '>' else '<'} ?", [end]
        return f"modified_ns {self.operator} ?", [start]

    def _on_metadata(self, key: str) -> tuple[str, list[object]]:
        """Return the condition on a value of the metadata, or on one of a list of values."""
        if '"' in key or "\\" in key:
            raise DataError(f"the key {key} holds quotation marks or a backslash: give another key")
        one, values = self._on_value()
        found = f"EXISTS (SELECT 1 FROM json_each(items.metadata, ?) AS said WHERE {one})"
        path = '$."' + key + '"'
        return (f"NOT {found}" if self.operator == "!=" else found), [path, *values]

    def _on_value(self) -> tuple[str, list[object]]:
        if self.operator in ("~", "contains"):
            return self._on_text("CAST(said.value AS TEXT)")
        operator = "=" if self.operator == "!=" else self.operator
        if self.value in ("true", "false", "null"):
            return f"said.type {operator} ?", [self.value]
        text, values = f"said.type = 'text' AND said.value {operator} ?", [self.value]
        if not _NUMBER.fullmatch(self.value):
            return text, [*values]
        number = f"said.type IN ('integer', 'real') AND said.value {operator} ?"
        return f"(({number}) OR ({text}))", [float(self.value), *values]


def parse_condition(text: str) -> Condition:
    """Return the condition that a text means: FIELD OPERATOR VALUE, such as ``size > 2MB`` or ``"place name" = Rome``.

    Raises:
        DataError: it cannot be understood.
    """
    found = _CONDITION.fullmatch(text)
    if found is None or not found["value"]:
        raise DataError(
            f"{text!r} is no condition: give FIELD OPERATOR VALUE with one of {' '.join(OPERATORS)}, such as "
            f"'date >= 2024-05', 'size > 2MB', 'path ~ holiday/*', 'kind = clip' or a key of metadata.jsonl"
        )
    condition = Condition(found["quoted"] or found["field"], found["operator"], found["value"])
    condition.sql()
    return condition


def parse_conditions(given: Sequence[Condition | str]) -> list[Condition]:
    """Return conditions that are given as such or as texts; see ``parse_condition``."""
    return [parse_condition(each) if isinstance(each, str) else each for each in given]


def allowed_items(index: Index, conditions: Sequence[Condition]) -> Bool[np.ndarray, "count"]:
    """Return which items of an index fulfil all conditions.

    Raises:
        DataError: a value does not fit its field.
        IndexFormatError: the index is damaged.
    """
    clauses = [condition.sql() for condition in conditions]
    sql = "SELECT key FROM items WHERE " + " AND ".join(f"({clause})" for clause, _ in clauses)
    with index.database() as database:
        keys = database.read(sql, [value for _, values in clauses for value in values])
    return np.isin(index.table.keys, np.array([row[0] for row in keys], np.int64))


def _bytes(value: str) -> int:
    found = _SIZE.fullmatch(value)
    if found is None:
        raise DataError(
            f"{value} is no size: give a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB"
        )
    power = " kmgt".index((found[2] or " ").lower())
    return _stored(int(Decimal(found[1]) * (1024 if found[3] else 1000) ** power), value)


def _stored(number: int, value: str) -> int:
    """Return a number as the database holds it; raise DataError where it is out of range."""
    if not -(1 << 63) <= number < 1 << 63:
        raise DataError(
            f"{_shortened(value)} is out of range: give a size below 8 EiB, or a date from 1678 to 2261"
        )
    return number


def _shortened(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:37]}..."


def _period(value: str) -> tuple[int, int]:
    """Return the nanoseconds at which a year, month, day, minute or second begins and ends, in local time."""
    for precision, pattern in enumerate(_DATES):
        try:
            start = datetime.strptime(value.replace(" ", "T"), pattern)
        except ValueError:
            continue
        try:
            end = (
                start.replace(year=start.year + 1),
                (start.replace(day=1) + timedelta(days=32)).replace(day=1),
                start + timedelta(days=1),
                start + timedelta(minutes=1),
                start + timedelta(seconds=1),
            )[precision]
            seconds = int(start.timestamp()), int(end.timestamp())
        except (
            ValueError,
            OverflowError,
            OSError,
        ):  # of a year that has no next one, or that the system cannot count
            seconds = (1 << 63, 1 << 63)
        return _stored(seconds[0] * 10**9, value), _stored(seconds[1] * 10**9, value)
    raise DataError(f"{value} is no date: give 2024, 2024-05, 2024-05-31 or 2024-05-31T18:30")
