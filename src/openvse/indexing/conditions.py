"""Conditions on the items of an index: on path, date, size and kind, and on the user's metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from difflib import SequenceMatcher
from typing import TypeAlias
from unicodedata import normalize

import numpy as np
from jaxtyping import Bool

from openvse.errors import DataError
from openvse.files import whole_characters
from openvse.indexing.database import dated, encode_id, taken_at
from openvse.indexing.index import Index
from openvse.indexing.words import folded
from openvse.media.names import escaped

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~", "contains")

_CONDITION = re.compile(
    r"""\s*(?:(?P<mark>["'])(?P<quoted>.+?)(?P=mark)|(?P<field>(?!\()[^\s=!<>~≠≤≥"']+))\s*"""
    r"(?P<operator>>=|<=|!=|==?|[<>~≠≤≥]|\bcontains\b)\s*(?P<value>.*?)\s*",
    re.DOTALL,
)
_OTHER_SIGNS = {"==": "=", "≠": "!=", "≤": "<=", "≥": ">="}
_QUOTED = re.compile(
    r"""(?:"(.*)"|'(.*)'|[“”„](.*)[“”]|[\u2018\u2019\u201a](.*)[\u2018\u2019]|«(.*)»|»(.*)«)""", re.DOTALL
)
_JOINED = re.compile(
    r"\s(?:AND|OR)\s|&&|\|\||(?:\s+(?:and|or)\s+|[,;]\s*)(?=[^\s,;=!<>~]+\s*(?:[=!<>~≠≤≥]|contains\b))"
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DATES = ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_KINDS = ("image", "clip", "sentence")
FIELDS = ("path", "date", "taken", "near", "size", "kind", "text")
"""The facts of an item that conditions name; a key of the metadata of such a name is ``meta.KEY``."""
_NEAR = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*,\s*([+-]?\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*(km|m)")
_TAKEN = "taken_at(json_extract(items.metadata, '$.taken'))"
_DATED = "taken_at(json_extract(items.metadata, '$.date'), json_extract(items.metadata, '$.taken'))"
_PLACE = "json_extract(items.metadata, '$.latitude'), json_extract(items.metadata, '$.longitude')"
_USERS = "meta."
_KEYS = "SELECT DISTINCT said.key FROM items, json_each(items.metadata) AS said"
_KEYS_TOLD = 10
_NAMES_OF_PLACES = "; coordinates get names by the extra places, when they are indexed"
_TYPES = {  # of the database's JSON, by what messages call them
    "numbers": ("integer", "real"),
    "texts": ("text",),
    "true or false": ("true", "false"),
    "null": ("null",),
}


Read: TypeAlias = Callable[[str, Sequence[object]], list[tuple[object, ...]]]
"""Returns the rows of a query with its bound values, from a database with the items."""


@dataclass(frozen=True)
class Condition:
    """A condition on items.

    Attributes:
        field: ``path`` (the item's id, for a segment of a clip its file's), ``taken`` (the time of a photograph or
            video, by the clock at the place), ``date`` (the metadata's own ``date``, or ``taken``, or the file's last
            change), ``near`` (the place of a photograph), ``size`` (in bytes), ``kind`` (image, clip or sentence),
            ``text`` (a line that was read in an image), or a key of the metadata. ``meta.size`` is a key ``size``.
        operator: one of ``OPERATORS``. ``~`` compares with a pattern with ``*``, ``?`` and ``[...]``, and ``contains``
            finds a part of a text. Texts are compared as words are, without case and accents (``folded``). In keys
            accents are the same in one character or two (Unicode's NFC).
        value: the value to compare with. A list in the metadata fits if one of its values does.

    Examples:
        >>> parse_condition("year >= 2020")
        Condition(field='year', operator='>=', value='2020')
    """

    field: str
    operator: str
    value: str

    def sql(self) -> tuple[str, list[object]]:
        """Return the condition in SQL, and its bound values. Raise DataError if the value does not fit the field."""
        match self.field:
            case "path":
                return self._on_text("id", "kind = 'clip'")
            case "kind":
                if self.operator not in ("=", "!=") or self.value not in _KINDS:
                    raise DataError(f"kind {self.operator} {self.value}: give = or !=, and one of {', '.join(_KINDS)}")
                return f"kind {self.operator} ?", [self.value]
            case "size":
                return f"size {self._order()} ?", [_bytes(self.value)]
            case "date" | "taken":
                return self._on_date()
            case "near" | "text":
                return self._on_place() if self.field == "near" else self._on_lines()
        return self._on_metadata()

    @property
    def key(self) -> str:
        """The condition's key of the metadata, or "" for path, date, size, kind and text."""
        known = {"taken": "taken", "near": "latitude"}
        return known.get(self.field, "") if self.field in FIELDS else self.field.removeprefix(_USERS)

    def _order(self) -> str:
        if self.operator in ("~", "contains"):
            raise DataError(f"{self.field} is a number or date, which has no {self.operator}: give = != < <= > or >=")
        return self.operator

    def _on_text(self, column: str, is_clip: str = "0") -> tuple[str, list[object]]:
        """Return the condition on a text. ``is_clip`` is SQL for whether only the file of a segment counts."""
        text, value = _plain(column, is_clip), [encode_id(folded(self.value))]
        match self.operator:
            case "~":
                return f"{text} GLOB CAST(? AS TEXT)", [*value]
            case "contains":
                return f"instr({text}, CAST(? AS TEXT)) > 0", [*value]
        return f"{text} {self.operator} CAST(? AS TEXT)", [*value]

    def span(self) -> tuple[datetime | None, datetime | None]:
        """Return the first moment of the dates that fit, and the first one after them, or None without an end.

        For ``!=``, these are the dates that do not fit.
        """
        start, end = _period(self.value)
        match self._order():
            case "=" | "!=":
                return start, end
            case ">" | ">=":
                return (end if self.operator == ">" else start), None
        return None, (start if self.operator == "<" else end)

    def _bounds(self, date: str) -> tuple[str, list[datetime]]:
        """Return the condition on a date, without regard to ``!=``, and its bounds."""
        bounds = [(sign, bound) for sign, bound in zip((">=", "<"), self.span(), strict=True) if bound]
        return " AND ".join(f"{date} {sign} ?" for sign, _ in bounds), [bound for _, bound in bounds]

    def _on_date(self) -> tuple[str, list[object]]:
        date = _DATED if self.field == "date" else _TAKEN
        fits, bounds = self._bounds(date)
        values: list[object] = [bound.isoformat() for bound in bounds]
        if self.field == "date":
            fits = f"CASE WHEN {date} IS NULL THEN {self._bounds('modified_ns')[0]} ELSE {fits} END"
            values = [*(int(bound.timestamp()) * 10**9 for bound in bounds), *values]
        return (f"NOT ifnull({fits}, 0)" if self.operator == "!=" else fits), values

    def _on_place(self) -> tuple[str, list[object]]:
        match = _NEAR.fullmatch(self.value)
        latitude, longitude = (float(match[1]), float(match[2])) if match else (math.inf, math.inf)
        if match is None or self.operator not in ("=", "!=") or abs(latitude) > 90 or abs(longitude) > 180:
            raise DataError(
                f"near {self.operator} {_shortened(self.value)}: give = or !=, and LATITUDE,LONGITUDE,RADIUS in "
                f"degrees and km or m, such as 'near = 52.5,13.4,20km'; a key of the metadata of this name is meta.near"
            )
        metres = float(match[3]) * (1000 if match[4] == "km" else 1)
        fits = f"ifnull(metres_between({_PLACE}, ?, ?) <= ?, 0)"
        return (f"NOT {fits}" if self.operator == "!=" else fits), [latitude, longitude, metres]

    def _on_lines(self) -> tuple[str, list[object]]:
        """Return the condition on one of the lines that were read in an image."""
        operator = "=" if self.operator == "!=" else self.operator
        one, values = replace(self, operator=operator)._on_text("said.value")
        lines = "readings, json_each(readings.lines) AS line, json_each(line.value) AS said"
        test = f"EXISTS (SELECT 1 FROM {lines} WHERE readings.key = items.key AND said.key IN (0, 4) AND {one})"
        return (f"NOT {test}" if self.operator == "!=" else test), values

    def _on_metadata(self) -> tuple[str, list[object]]:
        """Return the condition on a value of the metadata, or on one of a list of values."""
        if '"' in self.key or "\\" in self.key:
            raise DataError(f"the key {self.key} holds quotation marks or a backslash: give another key")
        test, values = self._any_value(*self._on_value())
        return (f"NOT {test}" if self.operator == "!=" else test), values

    def _any_value(self, one: str, values: Sequence[object]) -> tuple[str, list[object]]:
        """Return the test that a value of the key fulfils the test ``one``."""
        each: str = "json_each(items.metadata, ?)"
        key: object = f'$."{self.key}"'
        if not self.key.isascii():  # the metadata hold escapes, which the database does not find itself
            each, key = "json_each(values_of(items.metadata, ?))", encode_id(self.key)
        return f"EXISTS (SELECT 1 FROM {each} AS said WHERE {one})", [key, *values]

    def _on_value(self) -> tuple[str, list[object]]:
        if self.operator in ("~", "contains"):
            return self._on_text("CAST(said.value AS TEXT)")
        operator = "=" if self.operator == "!=" else self.operator
        if self.value == "null":
            return f"said.type {operator} ?", [self.value]
        equal, values = replace(self, operator=operator)._on_text("said.value")
        is_number = _NUMBER.fullmatch(self.value) is not None
        if operator != "=" and (is_number or self.is_date):  # no other text is more or less
            equal, values = "0", []
        if self.is_date:
            dated, bounds = self._bounds("taken_at(said.value)")
            equal = f"CASE WHEN taken_at(said.value) IS NULL THEN {equal} ELSE {dated} END"
            values += [bound.isoformat() for bound in bounds]
        text = f"said.type = 'text' AND {equal}"
        if self.is_truth:
            return f"(said.type {operator} ? OR ({text}))", [folded(self.value), *values]
        if not is_number:
            return text, values
        held = "CASE said.type WHEN 'text' THEN number_in(said.value) ELSE said.value END"
        number = f"said.type IN ('integer', 'real', 'text') AND {held} {operator} ?"
        other = f"said.type = 'text' AND number_in(said.value) IS NULL AND {equal}"
        return f"(({number}) OR ({other}))", [float(self.value), *values]

    @property
    def is_truth(self) -> bool:
        """Whether its value is true or false."""
        return folded(self.value) in ("true", "false")

    @property
    def is_date(self) -> bool:
        """Whether its value is a date, which texts of the metadata may be, too."""
        try:
            return taken_at(self.value) is not None and _period(self.value) is not None
        except DataError:  # it is no more than similar
            return False

    def _comparable(self) -> tuple[str, ...]:
        """Return the names in messages of the values that its value can be compared with."""
        if self.field == "near":
            return ("numbers",)
        if self.field == "taken" or self.operator in ("~", "contains") or _NUMBER.fullmatch(self.value):
            return ("numbers", "texts")
        if self.is_truth:
            return ("true or false", "texts")
        return ("null",) if self.value == "null" else ("texts",)

    def warning(self, read: Read) -> str:
        """Return a warning, or "", for an unknown key or another type of values, which fit no item or all."""

        def has(what: Sequence[str]) -> bool:
            types = [name for each in what for name in _TYPES[each]]
            test, values = self._any_value(f"said.type IN ({', '.join('?' * len(types))})", types)
            return bool(read(f"SELECT 1 FROM items WHERE {test} LIMIT 1", values))

        fits = "every item fits" if self.operator == "!=" else "no item fits"
        if self.field == "text" and not read("SELECT 1 FROM readings LIMIT 1", ()):
            return (
                f"no text was read in any image, so {fits} this condition: run 'openvse index' with --read-text; a "
                f"key of the metadata of this name is meta.text"
            )
        if not self.key or has(self._comparable()):
            return ""
        if kinds := [each for each in _TYPES if has([each])]:
            return (
                f"the values of {escaped(self.key)} are {' and '.join(kinds)}, which {escaped(_shortened(self.value))} "
                f"cannot be compared with, so {fits} this condition: give another value"
            )
        return (
            f"no item has the key {escaped(_shortened(self.key))}, so {fits} this condition: "
            f"{_nearest_keys(self.key, [str(key) for (key,) in read(_KEYS, ())])}"
        )


def condition_warnings(conditions: Sequence[Condition], read: Read) -> tuple[str, ...]:
    """Return the warnings of conditions. See ``Condition.warning``."""
    warnings = ((condition.key, condition.warning(read)) for condition in conditions)
    return tuple(line + (_NAMES_OF_PLACES if key == "place" else "") for key, line in warnings if line)


def _nearest_keys(key: str, keys: Sequence[str]) -> str:
    """Return the existing keys, the most similar first."""
    if not keys:
        return f"there are only {', '.join(FIELDS)}, as no item has metadata"
    near = SequenceMatcher(b=key.casefold())

    def similarity(other: str) -> float:
        near.set_seq1(other.casefold())
        return -near.ratio()

    there = sorted({*keys, *FIELDS}, key=lambda each: (similarity(each), each))
    more = f" and {len(there) - _KEYS_TOLD:,} more" if len(there) > _KEYS_TOLD else ""
    return f"there are {', '.join(map(escaped, there[:_KEYS_TOLD]))}{more}"


def _plain(column: str, is_clip: str) -> str:
    """Return the SQL of a text to compare. ASCII needs no function of Python, which takes ten times as long."""
    is_ascii = f"NOT ({is_clip}) AND length({column}) = length(CAST({column} AS BLOB))"
    other = f"folded(CAST({column} AS BLOB), {is_clip})"
    return f"CASE WHEN {is_ascii} THEN lower({column}) ELSE CAST({other} AS TEXT) END"


def forms_of(text: str) -> list[str]:
    """Return the forms in which a text may be stored: unchanged, with composed and with decomposed accents.

    Examples:
        >>> [len(form) for form in forms_of("caf\u00e9")]
        [4, 5]
    """
    return list(dict.fromkeys((text, normalize("NFC", text), normalize("NFD", text))))


def parse_condition(text: str) -> Condition:
    """Read FIELD OPERATOR VALUE, such as ``size > 2MB``. Raise DataError if it cannot be understood.

    ``==`` is ``=``, ``≥`` is ``>=``, and quotation marks around a value are no part of it.
    """
    if (match := _CONDITION.fullmatch(whole_characters(text))) is None or not match["value"]:
        raise DataError(
            f"{_shortened(text)!r} is no condition: give FIELD OPERATOR VALUE with one of {' '.join(OPERATORS)}, "
            f"such as 'date >= 2024-05', 'near = 52.5,13.4,20km', 'size > 2MB', 'path ~ holiday/*', 'kind = clip' or a "
            f"key of the metadata"
        )
    value = match["value"]
    if quoted := _QUOTED.fullmatch(value):
        value = quoted[quoted.lastindex or 0]
    elif value[0] in '=<>≠≤≥"“„«' or _JOINED.search(value):
        raise DataError(
            f"{_shortened(text)!r} is not one condition: give each condition its own --where, which must all be "
            "fulfilled, and put a value with a sign, AND or OR between quotation marks"
        )
    operator = _OTHER_SIGNS.get(match["operator"], match["operator"])
    condition = Condition(match["quoted"] or match["field"], operator, value)
    condition.sql()
    return condition


def allowed_items(index: Index, conditions: Sequence[Condition]) -> Bool[np.ndarray, "count"]:
    """Return which items of an index fulfil all conditions."""
    with index.database() as database:
        keys = database.read(*all_of(conditions))
    return np.isin(index.table.keys, np.array([row[0] for row in keys], np.int64))


def all_of(conditions: Sequence[Condition]) -> tuple[str, list[object]]:
    """Return the query for the keys of the items that fulfil all conditions, and its values."""
    clauses = [condition.sql() for condition in conditions]
    text = "SELECT key FROM items WHERE " + " AND ".join(f"({clause})" for clause, _ in clauses)
    return text, [value for _, values in clauses for value in values]


def _bytes(value: str) -> int:
    if (match := _SIZE.fullmatch(value)) is None:
        raise DataError(f"{value} is no size: give a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB")
    power = " kmgt".index((match[2] or " ").lower())
    return _stored(int(Decimal(match[1]) * (1024 if match[3] else 1000) ** power), value)


def _stored(number: int, value: str) -> int:
    """Return a number as the database holds it. Raise DataError if it is out of range."""
    if not -(1 << 63) <= number < 1 << 63:
        raise DataError(f"{_shortened(value)} is out of range: give a size below 8 EiB, or a date from 1678 to 2261")
    return number


def _shortened(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:37]}..."


def _period(value: str) -> tuple[datetime, datetime]:
    """Return the beginning and end of a year, month, day, hour, minute or second, by the clock of a place."""
    text = dated(value)
    for precision, pattern in enumerate(_DATES):
        try:
            start = datetime.strptime(text, pattern)
        except ValueError:
            continue
        try:
            end = (
                datetime(start.year + 1, 1, 1),
                (start.replace(day=1) + timedelta(days=32)).replace(day=1),
                start + timedelta(days=1),
                start + timedelta(hours=1),
                start + timedelta(minutes=1),
                start + timedelta(seconds=1),
            )[precision]
            seconds = int(start.timestamp()), int(end.timestamp())
        except (ValueError, OverflowError, OSError):  # no next year, or one that the system cannot count
            seconds, end = (1 << 63, 1 << 63), start
        for each in seconds:
            _stored(each * 10**9, value)
        return start, end
    raise DataError(f"{value} is no date: give 2024, 2024-05, 2024-05-31 or 2024-05-31T18:30")
