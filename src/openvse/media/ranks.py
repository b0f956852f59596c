"""The one ranking of the facts of a file: which source counts where several state the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

Header = dict[str, object]
"""The facts: ``taken`` (ISO 8601, as the clock at the place showed it, with its offset if known), ``camera``,
``latitude`` and ``longitude`` (degrees, WGS 84), ``title``, ``description``, lists of ``keywords``, ``tags`` (of
levels: ``places|berlin``) and ``people``, ``rating`` (0 to 5, -1 for rejected) and ``color_label``."""


class Source(Enum):
    """The sources of facts, the strongest first. A new source is a line here and a row of the table in the docs."""

    USER = "metadata.jsonl"
    SIDECAR = "a.jpg.xmp"
    SHARED_SIDECAR = "a.xmp"
    TAKEOUT = "Google Takeout"
    EXIF = "EXIF"
    CHANGED_IPTC = "IPTC that was changed after XMP"
    XMP = "XMP"
    IPTC = "IPTC"
    PNG = "text of a PNG"
    CONTAINER = "container of a video"
    NAME = "file name"


DATES = ("shot", "scanned", "named")
"""The kinds of dates, the strongest first. A weaker one may mean another day, whichever source states it."""

_RANK = {source: rank for rank, source in enumerate(Source)}
_ZONES_S, _ZONE_S = 14 * 3600, 900  # the largest difference of a clock from UTC, and the step of time zones
_SAME_PLACE = 0.0005  # degrees, about 50 m


@dataclass
class Said:
    """What one source says: facts, without empty ones, and dates of each kind.

    A date is as precise as it is stated: ``1975-06``, or a clock with its offset. A moment in UTC ends with ``Z``.
    "" stands for a date that is not understood, None for none.
    """

    source: Source
    facts: Mapping[str, object] = field(default_factory=dict)
    shot: Sequence[str | None] = ()
    scanned: Sequence[str | None] = ()
    named: Sequence[str | None] = ()

    def __post_init__(self) -> None:
        self.facts = {key: value for key, value in self.facts.items() if value not in (None, "", [])}


def joined(said: Iterable[Said]) -> Header:
    """Return the facts of a file by all of its sources. A moment in UTC becomes the time of this machine's zone."""
    ranked = _ranked(said)
    header, (_, taken) = first_stated(each.facts for each in ranked), _date_that_counts(ranked)
    if taken.endswith("Z"):
        with suppress(OverflowError, ValueError):  # of the year 1
            taken = datetime.fromisoformat(taken).astimezone().isoformat()
    return {**header, "taken": taken} if taken else header


def first_stated(ranked: Iterable[Mapping[str, object]]) -> Header:
    """Return each key with the value of the first that states it. None states nothing."""
    facts: Header = {}
    for each in reversed([*ranked]):
        facts |= {key: value for key, value in each.items() if value is not None or key not in facts}
    return facts


def differing(own: Iterable[Said], beside: Iterable[Said]) -> dict[str, Said]:
    """Return the keys in which a file says something else than the sidecars that count, each with its sidecar."""
    own, ranked = _ranked(own), _ranked(beside)
    held, counts = (first_stated(each.facts for each in some) for some in (own, ranked))
    apart = [key for key in held if key in counts and not _agree(counts[key], held[key])]
    found = {key: next(each for each in ranked if key in each.facts) for key in apart}
    (kind, date), (own_kind, own_date) = _date_that_counts([*ranked, *own]), _date_that_counts(own)
    if kind == own_kind and date and own_date and not _is_same_date(date, own_date):
        found["taken"] = next(each for each in ranked if any(getattr(each, kind)))
    return found


def _ranked(said: Iterable[Said]) -> list[Said]:
    return sorted(said, key=lambda each: _RANK[each.source])


def _date_that_counts(ranked: Sequence[Said]) -> tuple[str, str]:
    """Return the strongest kind of which there is a date, and its first date that is understood, or "".

    A source that states the same date more exactly completes it: with its clock, its offset, or, for a moment in UTC,
    the clock of the place.
    """
    for kind in DATES:
        stated = [date for each in ranked for date in getattr(each, kind) if date is not None]
        if not stated:
            continue
        counts = str(next(filter(None, stated), ""))
        for date in stated if counts else ():
            counts = date if date.startswith(counts) and not date.endswith("Z") else counts
        clocks = (date for other in DATES for each in ranked for date in getattr(each, other))
        return kind, next((str(date) for date in clocks if _shows(date, counts)), counts)
    return "", ""


def _is_same_date(one: str, other: str) -> bool:
    short, long = sorted((one[:19], other[:19]), key=len)
    return long.startswith(short) or _shows(one, other) or _shows(other, one)


def _shows(clock: str | None, moment: str) -> bool:
    """Return whether a clock shows a moment in UTC in some time zone."""
    if not clock or "T" not in clock or clock.endswith("Z") or not moment.endswith("Z"):
        return False
    shown = datetime.fromisoformat(clock).replace(tzinfo=UTC)
    apart = (shown - datetime.fromisoformat(moment)).total_seconds()
    return abs(apart) <= _ZONES_S and (apart + 30) % _ZONE_S <= 60


def _agree(said: Any, own: Any) -> bool:
    """Return whether a sidecar says what a file says, or more."""
    if isinstance(said, list):
        return {*own} <= {*said}
    if isinstance(said, float) and isinstance(own, float):
        return abs(said - own) < _SAME_PLACE
    return bool(said == own)
