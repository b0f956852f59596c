"""Files of other programs beside a photograph or video: sidecars of XMP, and the JSON of a Google Takeout.

The sidecar of ``a.jpg`` is ``a.jpg.xmp`` (darktable, digiKam, immich) or ``a.xmp`` (Lightroom). A Takeout calls its
file ``a.jpg.json`` or ``a.jpg.supplemental-metadata.json``, of which it keeps 46 characters. The file of ``a(1).jpg``
is ``a.jpg(1).json``. An edited copy, or the clip of a photograph that moves, has its original's file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from openvse.errors import DataError, OpenVSEError, decoded_text, message_of
from openvse.media.headers import Header, coordinates_of, date_in_name, plain_text, read_header, read_xmp
from openvse.media.listing import PLAIN
from openvse.media.names import escaped, is_video_name

_LARGEST = 8_000_000  # bytes of a sidecar
_CUT = 46  # characters that a Takeout keeps of a name before ".json"
_MORE = ".supplemental-metadata"
_STILLS = (".HEIC", ".heic", ".jpg", ".JPG", ".jpeg")  # beside which the clips of moving photographs are
_TAKEOUT_NAME = re.compile(
    r"(.*?)(-(?:edited|bearbeitet|modifié|editado|editada|modificato|bewerkt))?(\(\d+\))?(\.[^.]+)"
)
_ZONES_S, _ZONE_S = 14 * 3600, 900  # the largest difference of a clock from UTC, and the step of time zones
_SAME_PLACE = 0.0005  # degrees, about 50 m


@dataclass
class FileFacts:
    """The facts of a file and its sidecars, a line for each unusable one, and the fields in which some differ."""

    header: Header = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    differing: dict[str, Path] = field(default_factory=dict)


class Sidecars:
    """The sidecars below a folder, by the names of their files. ``unused`` ones are of no file that was asked for."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[tuple[str, str], str] = {}
        for name in names:
            stem, _, suffix = name.rpartition(".")
            self._names[stem, suffix.lower()] = name
        self.unused = {each for (_, end), each in self._names.items() if end == "xmp" or _MORE[:5] in each}

    def of(self, name: str) -> list[str]:
        """Return the names of the sidecars of a file, with the one that counts most first."""
        if not self._names:
            return []
        wanted = [
            (name, "xmp"),
            (name.rpartition(".")[0], "xmp"),
            *((each, "json") for each in _takeout(name)),
        ]
        found = [*dict.fromkeys(self._names[each] for each in wanted if each in self._names)]
        self.unused.difference_update(found)
        return found


def _takeout(name: str) -> Iterator[str]:
    """Yield the names, without .json, that a Takeout may give the file of a photograph or clip."""
    folder, slash, base = name.rpartition("/")
    if (match := _TAKEOUT_NAME.fullmatch(base)) is None:
        return
    stem, _, number, suffix = match.groups("")
    for each in (suffix, *(_STILLS if is_video_name(base) else ())):
        for inside, behind in ((number, ""), ("", number)):  # a photograph may have had a number before
            whole = f"{stem}{inside}{each}{_MORE}"
            for end in (len(whole), len(whole) - len(_MORE), _CUT, _CUT - len(behind)):
                yield f"{folder}{slash}{whole[:end]}{behind}"


def read_facts(path: Path, sidecars: Sequence[Path] = ()) -> FileFacts:
    """Return the facts of a file and its sidecars. A sidecar's facts come first, and nothing is raised."""
    facts, own = FileFacts(), read_header(path)
    if not sidecars:
        return FileFacts(own)
    dated = own if own.get("taken") != date_in_name(path.name) else {**own, "taken": None}
    for each in sidecars:
        try:
            said = _read(each, path)
        except OpenVSEError as error:
            facts.problems.append(f"{escaped(each)}: {str(error).removeprefix(f'{each}: ')}")
            continue
        if each.suffix.lower() == ".json" and _is_moment(dated.get("taken"), said.get("taken")):
            del said["taken"]  # which is in UTC; the file has the clock of the place
        for key in said.keys() & dated.keys() - facts.header.keys():
            if not _agree(key, said[key], dated[key]):
                facts.differing[key] = each
            elif key == "taken" and len(str(dated[key])) > len(str(said[key])):
                said[key] = dated[key]  # with its offset
        facts.header = {**said, **facts.header}
    facts.header = {**own, **facts.header}
    return facts


def sidecar_problems(read: Iterable[FileFacts]) -> list[str]:
    """Return a line for each unusable sidecar, and one with the number of differing sidecars, by field."""
    lines: dict[str, None] = {}
    differing: list[tuple[str, Path]] = []
    for facts in read:
        lines |= dict.fromkeys(facts.problems)
        differing += facts.differing.items()
    if differing:
        counts = Counter(key for key, _ in differing)
        fields = ", ".join(f"{key} ({count:,})" for key, count in counts.most_common())
        first = f"first: {escaped(differing[0][1])}"
        lines[f"sidecars say something else than their files, and count: {fields}; {first}"] = None
    return [*lines]


def _agree(key: str, said: Any, own: Any) -> bool:
    """Return whether a sidecar adds to the facts of a file, or states the same less exactly."""
    if own is None:
        return True
    if isinstance(said, list):
        return {*own} <= {*said}
    if isinstance(said, float) and isinstance(own, float):
        return abs(said - own) < _SAME_PLACE
    if key == "taken":
        return bool(said[:19].startswith(own[:19]) or own[:19].startswith(said[:19]))
    return bool(said == own)


def _is_moment(own: object, moment: object) -> bool:
    """Return whether a clock shows a moment in some time zone."""
    with suppress(ValueError, TypeError):
        shown = datetime.fromisoformat(str(own)).replace(tzinfo=UTC)
        apart = (shown - datetime.fromisoformat(str(moment))).total_seconds()
        return "T" in str(own) and abs(apart) <= _ZONES_S and (apart + 30) % _ZONE_S <= 60
    return False


def _read(sidecar: Path, path: Path) -> Header:
    content = _content(sidecar)
    if sidecar.suffix.lower() == ".xmp":
        return read_xmp(content)
    try:
        return _of_takeout(json.loads(decoded_text(content, sidecar)), path.name)
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no JSON ({message_of(error, 80)}): write it again, or remove it") from error


def _content(path: Path) -> bytes:
    """Return the bytes of a sidecar. A link that leads out of its folder could show any file, and is refused."""
    try:
        real, folder = path.resolve(), path.parent.resolve()
        if not real.is_relative_to(folder):
            raise DataError(
                "it leads to a file outside the folder, and is not read: copy the file into the folder"
            )
        with os.fdopen(os.open(real, PLAIN), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError("it is no ordinary file, and is not read")
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror})") from error
    if len(content) > _LARGEST:
        raise DataError(f"it is larger than {_LARGEST / 1e6:g} MB, and is not read")
    return content


def _of_takeout(entry: Any, name: str) -> Header:
    """Return the facts of a file in a Takeout, or none in another file. Its title has to be the file's name."""
    if not isinstance(entry, dict) or not isinstance(title := entry.get("title"), str):
        return {}
    if "photoTakenTime" not in entry and "geoData" not in entry:
        return {}
    if not _is_title(title, name):
        raise DataError(f"it is about another picture, {escaped(title[:80])}, and is not used")
    header: Header = {"description": plain_text(entry.get("description"))}
    with suppress(LookupError, TypeError, ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(int(entry["photoTakenTime"]["timestamp"]), UTC)
        header["taken"] = moment.astimezone().isoformat() if moment.timestamp() else None
    for each in ("geoDataExif", "geoData"):
        with suppress(LookupError, TypeError, ValueError):
            header |= coordinates_of(float(entry[each]["latitude"]), float(entry[each]["longitude"]))
    people = entry.get("people") if isinstance(entry.get("people"), list) else ()
    named = (plain_text(each.get("name")) for each in people or () if isinstance(each, dict))
    header["people"] = [*dict.fromkeys(filter(None, named))]
    return {key: value for key, value in header.items() if value not in (None, "", [])}


def _is_title(title: str, name: str) -> bool:
    """Return whether a file may have got its name from a title: signs are replaced, and a long title is cut."""
    match = _TAKEOUT_NAME.fullmatch(name)
    plain, stems = re.sub(r"\W", "_", title).lower(), [name.rpartition(".")[0]]
    stems += [match[1], match[1] + (match[3] or "")] if match else []
    for stem in stems:
        begins = plain.startswith(re.sub(r"\W", "_", stem).lower())
        if begins and (len(stem) >= _CUT - 6 or title[len(stem) :][:1] in ("", ".")):
            return True
    return False
