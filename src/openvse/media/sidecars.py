"""Files of other programs beside photographs and videos: sidecars of XMP, and those of a Google Takeout and of Picasa.

The sidecar of ``a.jpg`` is ``a.jpg.xmp`` (darktable, digiKam, immich) or ``a.xmp`` (Lightroom). A Takeout calls its
file ``a.jpg.json``, perhaps with a beginning of ``.supplemental-metadata`` before the end and with the number of
``a(1).jpg`` at any place. It cuts long names, so the title in the file decides. An edited copy (``a-WORD.jpg``), or the
clip of a photograph that moves, has its original's file. Picasa's file and an album's JSON describe their whole folder.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from openvse.errors import DataError, OpenVSEError, decoded_text, message_of
from openvse.media.headers import coordinates_of, date_in_folders, plain_text, read_xmp, said_by, said_of_place
from openvse.media.listing import PICASA, PLAIN
from openvse.media.matching import caseless
from openvse.media.names import escaped, foreign_kind, is_video_name, names_image
from openvse.media.ranks import FactSource, Header, Said, differing, ranked_facts

# The title of a Takeout may lack the suffix.
_SOURCES = FactSource.SIDECAR, FactSource.SHARED_SIDECAR, *[FactSource.TAKEOUT] * 2
_LARGEST = 8_000_000  # bytes of a sidecar
_MORE = "supplemental-metadata"
_LONGEST = 255  # characters of a name of a file, and so of a title
_MOST = 20  # sidecars of one kind of a file
_MOST_NAMES = 200  # of a file in Picasa
_LONG = 40  # bytes of a name that may have been cut, whatever unit the program counts
_ALBUM = re.compile(r"(m[eé]ta|мета|メタ|元)\w*(\(\d+\))?\.json", re.IGNORECASE)  # metadata, as a Takeout has it
_NUMBER, _WORD, _SIGN = re.compile(r"\(\d+\)"), re.compile(r"-\D*"), re.compile(r"\W")


@dataclass
class FileFacts:
    """The facts of a file and its sidecars, also without those of its path, their faults, and where they differ."""

    header: Header = field(default_factory=dict)
    stated: Header = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    differing: dict[str, Path] = field(default_factory=dict)


class _Name(NamedTuple):
    """A name: its folder, its base and stem without the numbers of copies, such as ``(1)``, and these numbers."""

    folder: str
    base: str
    stem: str
    numbers: str


def _name_of(name: str) -> _Name:
    """Return the parts of the name of a file, or of a title, which may lack the suffix."""
    folder, _, base = name.rpartition("/")
    rest = _NUMBER.sub("", base)
    stem = rest.rpartition(".")[0] if names_image(rest) or foreign_kind(rest) else rest
    return _Name(folder, rest, stem, "".join(_NUMBER.findall(base)))


def _described(sidecar: str) -> _Name:
    """Return the name of the file that a sidecar describes by its own name. A Takeout cuts long names."""
    of = _name_of(sidecar.rpartition(".")[0])
    base, dot, end = of.base.rpartition(".")
    is_more = _MORE.startswith(end.lower()) or end.lower() == "metadata"
    return of._replace(base=base) if _is_json(sidecar) and dot and is_more else of


def _is_json(sidecar: str) -> bool:
    return sidecar[-5:].lower() == ".json"


def _plain(name: str) -> str:
    """Return a name as titles are compared, because a Takeout replaces signs in names."""
    return _SIGN.sub("_", caseless(name))


def _is_long(stem: str) -> bool:
    """Return whether a stem may have been cut, in whatever unit a program counts."""
    return len(stem.encode("utf-8", "surrogatepass")) >= _LONG


def _originals(own: _Name) -> Iterator[str]:
    """Yield the stems of originals: of the still of a clip, and of ``a`` for ``a-edited``, in any language."""
    if is_video_name(own.base):
        yield from (own.stem, own.base)
    for at in range(len(own.stem) - 1, 0, -1):
        if _WORD.fullmatch(own.stem, at):
            yield own.stem[:at]


_Names: TypeAlias = dict[str, _Name]
_Form: TypeAlias = Callable[[str], str]


class Sidecars:
    """The sidecars of the photographs and videos below a folder.

    A name counts if it is exactly the same, or else without case and in one form of letters. What is left over of a
    Takeout goes to the file of its title. Then edited copies and clips get the file of their original.
    """

    def __init__(self, root: Path = Path(), sidecars: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._root, self._of = root, dict[str, dict[FactSource, list[str]]]()
        self._of_folders = dict[str, dict[FactSource, list[str]]]()
        self._left = {each: _described(each) for each in sidecars if not self._is_of_folder(each)}
        folders = {each.folder for each in self._left.values()}
        below = (name for name in names if name.rpartition("/")[0] in folders) if folders else ()
        there = {name: _name_of(name) for name in below}
        for form in (str, caseless):
            self._match(there, self._left, form)
        self._match_titles({name: own for name, own in there.items() if self._lacks(name)})

    def of(self, name: str) -> list[str]:
        """Return the names of the sidecars of a file, with the one that counts most first."""
        found = {**self._of.get(name, {}), **self._of_folders.get(name.rpartition("/")[0], {})}
        return [each for source in sorted(found, key=[*FactSource].index) for each in found[source]]

    def unused(self) -> list[str]:
        """Return the sidecars without a photograph or video. A JSON file is one only if a Takeout wrote it."""
        return sorted(each for each in self._left if not _is_json(each) or self._title(each))

    def _is_of_folder(self, sidecar: str) -> bool:
        """Return whether a file describes its whole folder, and note it."""
        folder, _, base = sidecar.rpartition("/")
        source = FactSource.PICASA if base.lower() in PICASA else None
        with suppress(Exception):
            if _ALBUM.fullmatch(base) and _album_in(_loaded(self._root / sidecar)):
                source = FactSource.ALBUM
        if source is not None:
            self._of_folders.setdefault(folder, {}).setdefault(source, []).append(sidecar)
        return source is not None

    def _lacks(self, name: str, source: FactSource = FactSource.TAKEOUT) -> bool:
        return source not in self._of.get(name, ())

    def _give(self, name: str, sidecars: list[str], source: FactSource = FactSource.TAKEOUT) -> None:
        self._of.setdefault(name, {})[source] = sidecars
        for each in sidecars:
            self._left.pop(each, None)

    def _title(self, sidecar: str) -> str:
        """Return the title in a file of a Takeout, as a name, or "" for a file of another program."""
        with suppress(Exception):
            entry = _loaded(self._root / sidecar)
            return str(entry["title"])[:_LONGEST].replace("/", "_") if _is_takeout(entry) else ""
        return ""

    def _match(self, there: _Names, sidecars: _Names, form: _Form, *, cut: bool = False) -> None:
        """Give files what is left of sidecars, by the names of both in a form. Those of the files may be cut."""
        beside: defaultdict[tuple[bool, str, str, str], list[str]] = defaultdict(list)
        for each, of in sidecars.items():
            whole = form(of.base)
            for end in range(1 if cut else len(whole), len(whole) + 1) if each in self._left else ():
                beside[_is_json(each), of.folder, whole[:end], of.numbers].append(each)
        for name, own in there.items() if beside else ():
            base, stem = form(own.base), form(own.stem)
            for source, written in zip(_SOURCES, (base, stem, base, stem), strict=True):
                fits = beside.get((source is FactSource.TAKEOUT, own.folder, written, own.numbers))
                if fits and self._lacks(name, source) and (not cut or _is_long(own.stem)):
                    self._give(name, fits[:_MOST], source)

    def _match_titles(self, lacking: _Names) -> None:
        """Match what is left over of a Takeout by its titles, and copies and clips with the files of originals."""
        folders, titled, by_number = {own.folder for own in lacking.values()}, _Names(), _Names()
        originals: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
        for each, of in self._left.items():
            if _is_json(each) and of.folder in folders and (title := self._title(each)):
                own = _name_of(title)._replace(folder=of.folder)
                titled[each] = own._replace(numbers=of.numbers)
                originals[of.folder, _plain(own.stem), of.numbers].append(each)
                if not _plain(of.base).startswith(_plain(own.stem)):  # the number tells cut names apart
                    by_number[each] = own
        self._match(lacking, titled, _plain)
        self._match(lacking, by_number, _plain)
        self._match(lacking, {each: of._replace(base=of.stem) for each, of in titled.items()}, _plain, cut=True)
        for name, found in self._of.items():
            for each in found.get(FactSource.TAKEOUT, ()):
                own = _name_of(name)
                originals[own.folder, _plain(own.stem), own.numbers].append(each)
        for name, own in lacking.items() if originals else ():
            end = own.base.rpartition(".")[2].lower()
            for stem in _originals(own) if self._lacks(name) else ():
                if fits := originals.get((own.folder, _plain(stem), own.numbers)):
                    same = (each for each in fits[:_MOST] if _described(each).base.lower().endswith(end))
                    self._give(name, [next(same, fits[0])])
                    break


def read_facts(path: Path, sidecars: Sequence[Path] = (), folders: int = 0) -> FileFacts:
    """Return the facts of a file, its sidecars and so many folders above it. Nothing is raised."""
    facts, own, beside = FileFacts(), said_by(path, folders), list[Said]()
    for each in sidecars:
        try:
            beside.append(_read(each, path))
        except Exception as error:  # whatever a file of another program makes a reader raise is one line
            said = str(error).removeprefix(f"{each}: ") if isinstance(error, OpenVSEError) else ""
            said = said or f"it cannot be read ({message_of(error, 80)})"
            facts.problems.append(f"{escaped(each)}: {said}")
    facts.header = ranked_facts([*own, *beside])
    if "place" not in facts.header:
        by_name = said_of_place(facts.header.get("latitude"), facts.header.get("longitude"))
        facts.header = ranked_facts([*own, *beside, by_name])
    inside = [each for each in own if each.source not in (FactSource.NAME, FactSource.FOLDERS)]
    facts.stated = ranked_facts([*inside, *beside])
    facts.differing = dict.fromkeys(differing(ranked_facts(inside), facts.stated), path)
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


def _read(sidecar: Path, path: Path) -> Said:
    if sidecar.name.lower() in PICASA:
        status = sidecar.stat()
        return _of_picasa(_sections(sidecar, status.st_mtime_ns, status.st_size), caseless(path.name))
    if not _is_json(sidecar.name):
        is_own = caseless(sidecar.stem) == caseless(path.name)
        return read_xmp(_content(sidecar), FactSource.SIDECAR if is_own else FactSource.SHARED_SIDECAR)
    try:
        entry = _loaded(sidecar)
    except DataError:
        if names_image(_described(sidecar.name).base):
            raise
        return Said(FactSource.TAKEOUT)  # a.json may be of any program
    if album := _album_in(entry) if _ALBUM.fullmatch(sidecar.name) else "":
        return Said(FactSource.ALBUM, {"tags": [album]})
    return _of_takeout(entry, path.name)


def _loaded(sidecar: Path) -> Any:
    try:
        return json.loads(decoded_text(_content(sidecar), sidecar))
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no JSON ({message_of(error, 80)}): write it again, or remove it") from error


def _content(path: Path) -> bytes:
    """Return the bytes of a sidecar. A link that leads out of its folder could show any file, and is refused."""
    try:
        real = path.resolve() if path.is_symlink() else path
        if real != path and not real.is_relative_to(path.parent.resolve()):
            raise DataError("it leads to a file outside the folder, and is not read: copy the file into the folder")
        with os.fdopen(os.open(real, PLAIN), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError("it is no ordinary file, and is not read")
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror})") from error
    if len(content) > _LARGEST:
        raise DataError(f"it is larger than {_LARGEST / 1e6:g} MB, and is not read")
    return content


def _is_takeout(entry: Any) -> bool:
    """Return whether an object of JSON is about a photograph in a Takeout. Albums have no time, and no file's name."""
    return (
        isinstance(entry, dict)
        and isinstance(title := entry.get("title"), str)
        and ("photoTakenTime" in entry or ("geoData" in entry and names_image(title)))
    )


def _album_in(entry: Any) -> str:
    """Return the title of an album of a Takeout, or "" for other objects and for the folder of a year or day."""
    entry = entry.get("albumData", entry) if isinstance(entry, dict) and not _is_takeout(entry) else None
    is_album = isinstance(entry, dict) and isinstance(entry.get("date", entry.get("access")), dict | str)
    title = plain_text(entry.get("title")) if is_album else ""
    return "" if date_in_folders([title, ""]) else title


@lru_cache(maxsize=8)
def _sections(file: Path, _modified_ns: int, _size: int) -> dict[str, dict[str, str]]:
    """Return the sections of a file of Picasa, the keys of each in small letters. All files of a folder need it."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in decoded_text(_content(file), file).splitlines():
        if (plain := line.strip()).startswith("[") and plain.endswith("]"):
            current = sections.setdefault(caseless(plain[1:-1]), {})
        elif "=" in plain:
            key, _, value = plain.partition("=")
            current[key.strip().lower()] = value.strip()
    return sections


def _of_picasa(sections: dict[str, dict[str, str]], name: str) -> Said:
    """Return what Picasa says of a file: a star as 5 stars, the caption, keywords, albums, and the names of faces."""
    own, contacts = sections.get(name, {}), {**sections.get("contacts", {}), **sections.get("contacts2", {})}

    def texts(values: Iterable[str]) -> list[str]:
        return [*islice(dict.fromkeys(filter(None, map(plain_text, values))), _MOST_NAMES)]

    faces = (each.rpartition(",")[2].lower() for each in own.get("faces", "").split(";"))
    albums = (sections.get(caseless(each), {}).get("name", "") for each in own.get("albums", "").split(","))
    header: Header = {
        "description": plain_text(own.get("caption")),
        "keywords": texts(own.get("keywords", "").split(",")),
        "tags": texts(albums),
        "people": texts(contacts.get(face, "").partition(";")[0] for face in faces),
        "rating": 5 if own.get("star", "").lower() == "yes" else None,
    }
    return Said(FactSource.PICASA, header)


def _of_takeout(entry: Any, name: str) -> Said:
    """Return what a Takeout says of a file, or nothing for another program's entry. The title has to be the file's."""
    said = Said(FactSource.TAKEOUT)
    if not _is_takeout(entry):
        return said
    if not _is_title(entry["title"], name):
        raise DataError(f"it is about another picture, {escaped(entry['title'][:80])}, and is not used")
    header: Header = {"description": plain_text(entry.get("description"))}
    with suppress(LookupError, TypeError, ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(int(entry["photoTakenTime"]["timestamp"]), UTC)
        said.shot = [f"{moment:%Y-%m-%dT%H:%M:%S}Z"] if moment.timestamp() else []
    for each in ("geoDataExif", "geoData"):
        with suppress(LookupError, TypeError, ValueError, OverflowError):
            header |= coordinates_of(float(entry[each]["latitude"]), float(entry[each]["longitude"]))
    people = entry.get("people") if isinstance(entry.get("people"), list) else ()
    named = (plain_text(each.get("name")) for each in people or () if isinstance(each, dict))
    header["people"] = [*dict.fromkeys(filter(None, named))]
    return replace(said, facts=header)


def _is_title(title: str, name: str) -> bool:
    """Return whether a file may have got its name from a title: signs are replaced, and a long title is cut."""
    own, given = _name_of(name), caseless(_name_of(title.replace("/", "_")).base)
    return any(
        _plain(given).startswith(_plain(stem)) and (_is_long(stem) or given[len(stem) :][:1] in ("", "."))
        for stem in map(caseless, (own.stem, *_originals(own)))
    )
