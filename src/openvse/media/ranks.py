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
``latitude`` and ``longitude`` (degrees, WGS 84), ``place`` (its names, the narrowest first), ``title``, ``headline``,
``description``, ``alt``, lists of ``keywords``, ``tags`` (of levels: ``places|berlin``) and ``people``, ``rating`` (0
to 5, -1 for rejected) and ``color_label`` (a list if there are several)."""


class FactSource(Enum):
    """The sources of facts, the strongest first. A new source is a line here and a row of the table in the docs."""

    USER = "metadata.jsonl"
    SIDECAR = "a.jpg.xmp"
    SHARED_SIDECAR = "a.xmp"
    TAKEOUT = "Google Takeout"
    PICASA = ".picasa.ini"
    ALBUM = "album of a Google Takeout"
    EXIF = "EXIF"
    CHANGED_IPTC = "IPTC that was changed after XMP"
    XMP = "XMP"
    IPTC = "IPTC"
    WINDOWS = "EXIF of Windows"
    PNG = "text of a PNG"
    CONTAINER = "container of a video"
    NAME = "file name"
    FOLDERS = "names of folders"
    COORDINATES = "names of coordinates"


_KINDS = ("shot", "scanned", "named")  # of dates: a weaker one may mean another day, whatever its source
_ZONES_S, _ZONE_S = 14 * 3600, 900  # the largest difference of a clock from UTC, and the step of time zones
_SAME_PLACE = 0.0005  # degrees, about 50 m


@dataclass
class Said:
    """What one source says: facts, without empty ones, and dates of each kind.

    A date is as precise as it is stated: ``1975-06``, or a clock with its offset. A moment in UTC ends with ``Z``.
    "" stands for a date that is not understood, None for none.
    """

    source: FactSource
    facts: Mapping[str, object] = field(default_factory=dict)
    shot: Sequence[str | None] = ()
    scanned: Sequence[str | None] = ()
    named: Sequence[str | None] = ()

    def __post_init__(self) -> None:
        self.facts = {key: value for key, value in self.facts.items() if value not in (None, "", [])}


def ranked_facts(said: Iterable[Said]) -> Header:
    """Return the facts of a file by all of its sources. A moment in UTC becomes the time of this machine's zone."""
    ranked = sorted(said, key=lambda each: [*FactSource].index(each.source))
    header, taken = first_stated(each.facts for each in ranked), _taken(ranked)
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


def differing(held: Header, counts: Header) -> list[str]:
    """Return the keys of facts that others lack, or state otherwise and not only more or less exactly."""
    return [key for key in held if key not in counts or not _agree(key, counts[key], held[key])]


def _taken(ranked: Sequence[Said]) -> str:
    """Return the first date that is understood of the strongest kind that is stated, or "".

    A source that states the same date more exactly completes it: with its clock, its offset, or, for a moment in UTC,
    the clock of the place.
    """
    of = [[date for each in ranked for date in getattr(each, kind) if date is not None] for kind in _KINDS]
    strongest = next(filter(None, of), [])
    taken = next(filter(None, strongest), "")
    for date in strongest if taken else ():
        taken = date if date.startswith(taken) and not date.endswith("Z") else taken
    clocks = (date for dates in of for date in dates if taken.endswith("Z") and _shows(date, taken))
    return next(clocks, taken)


def _shows(clock: str, moment: str) -> bool:
    """Return whether a clock shows a moment in some time zone."""
    if "T" not in clock or "T" not in moment or clock.endswith("Z"):
        return False
    shown, at = datetime.fromisoformat(clock).replace(tzinfo=UTC), datetime.fromisoformat(moment)
    apart = (shown - at).total_seconds() if at.tzinfo else _ZONE_S / 2
    return abs(apart) <= _ZONES_S and (apart + 30) % _ZONE_S <= 60


def _agree(key: str, said: Any, own: Any) -> bool:
    """Return whether the sidecars of a file say what it says, or the same more or less exactly."""
    if isinstance(said, list):
        return {*(own if isinstance(own, list) else [own])} <= {*said}
    if isinstance(said, float) and isinstance(own, float):
        return abs(said - own) < _SAME_PLACE
    if key == "taken":
        short, long = sorted((said[:19], own[:19]), key=len)
        return bool(long.startswith(short)) or _shows(said, own)
    return bool(said == own)
