"""The content of a folder: images, clips if wanted, omitted files, and rules for skipping."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from openvse.errors import BadImageError, DataError, TextError, decoded_text
from openvse.media.names import escaped, foreign_kind, is_image, is_video_name, known_formats, remedy


@dataclass(frozen=True, slots=True)
class PackedFile(ABC):
    """A file within a larger one. It may replace the path of an image or clip everywhere.

    It knows the place of its bytes and does not hold them, so that memory is bounded and worker processes receive only
    a few words per image. Its ``str`` is its name in messages.
    """

    container: Path
    name: str

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Return the bytes of the file."""

    def digest(self) -> bytes:
        """Return a hash of the bytes, 64 bytes. See ``read_bytes`` for the errors."""
        return hashlib.blake2b(self.read_bytes()).digest()

    def __str__(self) -> str:
        return f"{self.container}: {self.name}"


ImageFile: TypeAlias = Path | PackedFile
"""The place of an image or clip of a corpus: a file, or a part of one."""


def content_digest(file: ImageFile) -> bytes:
    """Return a hash of the bytes of a file, which may be larger than the memory."""
    if not isinstance(file, Path):
        return file.digest()
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").digest()


@dataclass(frozen=True, slots=True)
class FileSlice(PackedFile):
    """Consecutive bytes of a larger file, such as a member of an uncompressed tar archive."""

    offset: int
    size: int

    def read_bytes(self) -> bytes:
        """Read the bytes. Raise BadImageError if the larger file ends before the last of them."""
        with self.container.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) < self.size:
            raise BadImageError(f"{self.container} ends within it: get the whole archive again")
        return content


LINE_BREAK = "with a line break in the name"
VIDEO = "video"
LINK = "linked folder"
SYSTEM = "system folder"
SIDECARS = ("xmp", "json")
"""The suffixes of the files in which other programs describe an image."""

PICASA = (".picasa.ini", "picasa.ini")
"""The names of the file in which Picasa describes the images of its folder."""

AGAIN = "listed under another name"
UNNAMED = "without the suffix of an image or video"
SPECIAL = "no ordinary file"
PLAIN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""The flags to open a file that somebody else may replace: no link is followed, and no pipe is waited for."""

_REMEDIES = {
    LINE_BREAK: "rename files whose names have line breaks",
    VIDEO: "videos need a model of clips",
    SYSTEM: "system folders are not entered, name one in .openvseignore to enter it, such as !@eaDir/",
    LINK: "links to folders are not followed, give the folder itself, or index with --follow-links",
    AGAIN: "each folder and file is listed once",
    SPECIAL: "pipes, sockets and devices are not read",
    UNNAMED: "rename files to the suffix of what they hold, such as .jpg or .mpg",
}
_SYSTEM = re.compile(  # thumbnails, bins and snapshots of NAS boxes, desktops and file systems
    r"@(eaDir|tmp|Recycle|Recently-Snapshot|__thumb)|\.@__thumb|#(recycle|snapshot)|\.snapshots?|\.thumbnails|__MACOSX|"
    r"\.Trash(es|-\d+)?|\$RECYCLE\.BIN|RECYCLER|System Volume Information|lost\+found|\.Spotlight-V100|\.fseventsd|"
    r"\.AppleDouble|\.TemporaryItems|\.DocumentRevisions-V100",
    re.IGNORECASE,
)
_TYPESCRIPT = ("ts", "mts")  # suffixes of videos, too: of MPEG transport streams
_MOTION = ("mp", "mp~2", "mp~3", "mv")  # clips of motion photographs; other programs have such files, too
_UNCLEAR = ("", "bin", "dat", "mod")  # of anything: also photos in caches, and videos of cameras and discs
_LOOKED_AT = frozenset((*_TYPESCRIPT, *_MOTION, *_UNCLEAR))
_PACKETS = (188, 192, 204)  # bytes of a packet of a transport stream: plain, with its time, with its parity
_VIDEO = re.compile(rb"RIFF....(AVI |CDXA)|....ftyp|\0\0\x01[\xb3\xba]|\x1aE\xdf\xa3", re.DOTALL)


class Problem(str):
    """A line about one kind of problem. As a string, it names the first case."""

    summary: str
    cases: tuple[str, ...]
    fault: bool

    def __new__(cls, summary: str, cases: Sequence[str] = (), *, fault: bool = False) -> Problem:
        """Make the line from the summary and the first case."""
        shown = tuple(map(escaped, cases))
        problem = super().__new__(cls, f"{summary} (first: {shown[0]})" if shown else summary)
        problem.summary, problem.cases, problem.fault = summary, shown, fault
        return problem

    def __reduce__(self) -> tuple[type[Problem], tuple[str, tuple[str, ...]], dict[str, bool]]:
        return Problem, (self.summary, self.cases), {"fault": self.fault}


def skipped(cases: Sequence[str], what: str, *, fault: bool = False) -> list[Problem]:
    """Return a line about skipped items, or none without cases."""
    return [Problem(f"skipped {len(cases)} {what}", cases, fault=fault)] if cases else []


@dataclass(frozen=True)
class LeftOut:
    """Files that look like images or clips, and folders, that are left out."""

    files: dict[str, list[Path]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files)

    def counts(self) -> str:
        """Return the number of files of each kind: "27 videos, 3 HEIC, 1 SVG"."""
        ordered = Counter({kind: len(paths) for kind, paths in self.files.items()}).most_common()
        plural = {kind: f"{kind}s" for kind in (VIDEO, LINK, SYSTEM)}
        return ", ".join(f"{count:,} {kind if count == 1 else plural.get(kind, kind)}" for kind, count in ordered)

    def describe(self) -> Problem:
        """Return one line: the counts, a remedy for each kind, and one file by name. The cases are all files."""
        remedies = dict.fromkeys(_REMEDIES.get(kind) or remedy(kind) for kind in self.files)
        cases = [str(path) for paths in self.files.values() for path in paths]
        return Problem(f"left out {self.counts()}: {'; '.join(remedies)}", cases)


@dataclass(frozen=True)
class Listing:
    """The names of the images and clips below a folder in the order of their parts, omitted files, and sidecars."""

    root: Path
    names: list[str]
    left_out: LeftOut
    unreadable: list[Path]
    sidecars: list[str] = field(default_factory=list)

    @cached_property
    def paths(self) -> list[Path]:
        """The paths of the images and clips. Each begins with the folder."""
        return [self.root / name for name in self.names]

    def without(self, again: Collection[str]) -> Listing:
        """Return the listing without further names of listed files."""
        above = os.path.join(self.root, "")  # noqa: PTH118
        left = [self.root / name for name in self.names if above + name in again]
        files = {**self.left_out.files, AGAIN: [*self.left_out.files.get(AGAIN, []), *left]}
        names = [name for name in self.names if above + name not in again]
        return replace(self, names=names, left_out=LeftOut(files if left else self.left_out.files))

    def problems(self, used: Collection[Path] = ()) -> tuple[str, ...]:
        """Return a line for omitted files, and one for each folder that cannot be listed."""
        links = self.left_out.files.get(LINK, [])
        above = {each for path in used if links for each in (path, *path.parents)}
        unused = [link for link in links if link not in above]
        files = {kind: unused if kind == LINK else paths for kind, paths in self.left_out.files.items()}
        left_out = LeftOut({kind: paths for kind, paths in files.items() if paths})
        lines = [left_out.describe()] if left_out else []
        return (*lines, *(f"{escaped(path)}: the folder cannot be listed" for path in self.unreadable))


def list_media(folder: str | Path, *, videos: bool = False, ignored: IgnoreRules | None = None) -> Listing:
    """List the images below a folder, recursively and sorted.

    Hidden files and folders are skipped, and folders of the system or of a NAS are left out and counted.
    """
    return list_folders([Path(folder)], [ignored], videos=videos)[0]


def list_folders(
    folders: Sequence[Path], rules: Sequence[IgnoreRules | None], *, videos: bool, follow_links: bool = False
) -> list[Listing]:
    """List images as ``list_media`` does. A link is followed to files that have no other name, under the first name."""
    waiting: list[tuple[_Walk, str]] = []  # it grows by the links that are met
    seen: set[tuple[int, int]] | None = set() if follow_links else None
    walks = [_Walk(root, each, videos, seen, waiting) for root, each in zip(folders, rules, strict=True)]
    waiting += [(walk, "") for walk in walks]
    for walk, start in waiting:
        if follow_links or not start:
            walk.list_below(start)
        else:
            walk.left_out[LINK].append(walk.root / start)
    for walk in walks if follow_links else ():
        walk.names.sort(key=lambda name: name.split("/"))
    return [
        Listing(walk.root, walk.names, LeftOut(dict(walk.left_out)), walk.unreadable, walk.sidecars) for walk in walks
    ]


def each_once(listings: Sequence[Listing]) -> list[Listing]:
    """Return each file under one name, which is no link if it has another name. The other names are left out."""
    paths = [os.path.join(each.root, name) for each in listings for name in each.names]  # noqa: PTH118
    links = {path: identity_of(path) for path in paths if os.path.islink(path)}  # noqa: PTH114
    linked, chosen = {*links.values()}, dict[tuple[int, int], str]()
    again = set[str]()
    for path in (*(path for path in paths if path not in links), *links):
        identity = identity_of(path, linked)
        if identity is not None and chosen.setdefault(identity, path) != path:
            again.add(path)
    return [each.without(again) if again else each for each in listings]


def identity_of(path: str | Path, wanted: Collection[object] | None = None) -> tuple[int, int] | None:
    """Return device and inode of a file with several names or among the wanted ones, or None for others."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a string, for speed
    except OSError:  # it is broken, and whoever reads it says so
        return None
    identity = status.st_dev, status.st_ino
    return identity if wanted is None or status.st_nlink > 1 or identity in wanted else None


def walk_files(root: Path) -> Iterator[Path]:
    """Yield the files below a folder. Hidden files and folders are skipped, links to folders are not followed."""
    walk = _Walk(root)
    return (root / name for name in walk.names_below("") if name not in walk.special and "/." not in f"/{name}")


@dataclass
class _Walk:
    """The files found below a folder, the seen ones (device, inode) in all folders, and names to continue with."""

    root: Path
    ignored: IgnoreRules | None = None
    videos: bool = False
    seen: set[tuple[int, int]] | None = None
    waiting: list[tuple[_Walk, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    left_out: defaultdict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    unreadable: list[Path] = field(default_factory=list)
    special: set[str] = field(default_factory=set)
    sidecars: list[str] = field(default_factory=list)

    def list_below(self, start: str) -> None:
        """Add the files below a folder, or a file, by its name below the root."""
        if not start and not self.root.is_dir():
            raise DataError(f"{escaped(self.root)}: there is no such folder: give a folder of images")
        of_suffix: dict[str, str | None] = {}  # what a suffix says is looked up once
        for name in self.names_below(start):
            base = name[name.rfind("/") + 1 :]
            stem, _, suffix = base.rpartition(".")
            if "\n" in base or not stem or suffix.lower() in _LOOKED_AT:
                suffix = ""  # each is looked at
            if not suffix or suffix not in of_suffix:
                of_suffix[suffix] = _kind(base, self.root / name, videos=self.videos)
            kind = of_suffix[suffix]
            if kind is None and name == start and not (self.root / name).exists():
                self.unreadable.append(self.root / name)
            elif kind == "" and name in self.special:
                self.left_out[SPECIAL].append(self.root / name)
            elif kind == "" and not self._is_again(name, start):
                self.names.append(name)
            elif kind:
                self.left_out[kind].append(self.root / name)
            elif suffix.lower() in SIDECARS or base.lower() in PICASA:
                self.sidecars.append(name)

    def names_below(self, start: str) -> Iterator[str]:
        """Yield the names of the files below a folder, in the order of their parts, with forward slashes."""
        waiting = [(start, (self.root / start).is_dir())]  # the last one is the next
        while waiting:
            name, is_folder = waiting.pop()
            path = os.path.join(self.root, name)  # noqa: PTH118 - a string, for speed
            if name != start and (is_folder or self.seen is not None) and os.path.islink(path):  # noqa: PTH114
                self.waiting.append((self, name))
            elif not is_folder:
                yield name
            elif not self._is_again(name, start):
                is_read = False
                with suppress(OSError), os.scandir(path) as entries:
                    inside, system = _inside(entries, f"{name}/" if name else "", self.ignored, self.special)
                    waiting += sorted(inside, reverse=True)
                    for each in sorted(system):
                        self.left_out[SYSTEM].append(self.root / each)
                    is_read = True
                if not is_read:
                    self.unreadable.append(self.root / name)

    def _is_again(self, name: str, start: str) -> bool:
        """Return whether a link leads to an already listed file, to be left out. New files count as listed."""
        identity = None if self.seen is None else identity_of(os.path.join(self.root, name))  # noqa: PTH118
        if self.seen is None or identity is None:
            return False
        if start and identity in self.seen:
            self.left_out[AGAIN].append(self.root / name)
            return True
        self.seen.add(identity)
        return False


def _inside(
    entries: Iterable[os.DirEntry[str]], prefix: str, ignored: IgnoreRules | None, special: set[str]
) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the files and folders of a folder that are not skipped, and its system folders. Note special files."""
    inside, system = [], []
    for entry in entries:
        name, is_folder = prefix + entry.name, _is_folder(entry)
        is_system = is_folder and _SYSTEM.fullmatch(entry.name) is not None
        is_left_out = is_system or (entry.name.startswith(".") and entry.name.lower() not in PICASA)
        if is_left_out and not (is_folder and ignored and ignored.enters(name)):
            system += [name] * is_system
            continue
        if not (ignored and ignored(name, is_folder)):
            inside.append((name, is_folder))
            if not is_folder and _is_special(entry):
                special.add(name)
    return inside, system


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir()
    return False


def _is_special(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry leads to a pipe, a socket or a device. A link that leads to nothing does not."""
    with suppress(OSError):
        return not entry.is_file() and bool(entry.stat().st_mode)
    return False


def _kind(name: str, path: Path, *, videos: bool) -> str | None:
    """Return the kind of an omitted file, "" for a listed one, and None for others."""
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    if suffix in _UNCLEAR:
        start = _start(path)
        is_media = _VIDEO.match(start) or any(each.begins(start) for each in known_formats() if each.begins)
        return UNNAMED if is_media else None
    if suffix in _TYPESCRIPT and not _is_transport_stream(_start(path)):
        return None
    if suffix in _MOTION and not _VIDEO.match(_start(path)):
        return None
    is_listed = is_image(name) or (videos and is_video_name(name))
    return kind_left_out(name, videos=videos) or ("" if is_listed else None)


def _start(path: Path) -> bytes:
    """Return the first bytes of a file, or none if it is no file or cannot be read."""
    with suppress(OSError):
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                return file.read(8 * max(_PACKETS))
    return b""


def _is_transport_stream(start: bytes) -> bool:
    """Return whether a file begins like an MPEG transport stream: every packet with 0x47 (ISO/IEC 13818-1)."""
    return b"\0" in start and any(
        set(start[first::size]) == {0x47} and len(start) > size + first for size in _PACKETS for first in range(size)
    )


def kind_left_out(name: str, *, videos: bool) -> str:
    """Return the kind of an omitted file, or "" if it is listed, or is neither image nor clip."""
    if "\n" in name:
        flat = name.replace("\n", " ")
        return LINE_BREAK if is_image(flat) or is_video_name(flat) else ""
    if is_video_name(name):
        return "" if videos else VIDEO
    return foreign_kind(name)


RULES_FILE = ".openvseignore"
"""The file at the top of a folder whose lines are its rules."""

_MOST_RULES, _MOST_DEPTHS = 1000, 3  # lines, and "**" of a line
_STAR = "[^/]*"
_LAST_STARS = re.compile(r"(^!?|/)(\*\*?)(?=/? *$)")


class IgnoreRules:
    r"""Decides which paths below a folder are skipped. The last rule that fits a path counts.

    A rule is a pattern with ``*``, ``?`` and ``[...]``, which match no slash, and ``**``, which matches any number of
    folders. A pattern with a slash before its end begins at the folder. Any other pattern matches at any depth. With a
    slash at its end it matches folders alone. ``!`` before a pattern takes an earlier rule back, but nothing inside a
    skipped folder. Empty lines, and lines that begin with ``#``, are no rules. A hidden or system folder is only
    entered if such a rule has its name, without stars: ``!@eaDir/``.
    """

    def __init__(self, lines: Sequence[str] = ()) -> None:
        written = (line for line in lines if line.strip() and not line.startswith("#"))
        self._rules = [(*_rule(line), line) for line in reversed(list(written))]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __call__(self, path: str, is_folder: bool) -> bool:
        """Return whether a path is skipped."""
        if is_folder:
            path += "/"
        return next((skips for fits, skips, _ in self._rules if fits(path)), False)

    def enters(self, folder: str) -> bool:
        """Return whether a folder that is left out by default is entered, because a ``!`` rule has its name."""
        last = next(((skips, line) for fits, skips, line in self._rules if fits(f"{folder}/")), (True, ""))
        return not last[0] and folder.rpartition("/")[2] in last[1]


def rules_of(folder: Path, more: Sequence[str] = ()) -> IgnoreRules:
    """Return the rules of a folder's ``.openvseignore``, then others. Raise DataError if one cannot be understood."""
    file = folder / RULES_FILE
    try:
        text = decoded_text(file.read_bytes(), file) if file.is_file() else ""
    except TextError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): repair it, or remove it") from error
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > _MOST_RULES:
        raise DataError(f"{file} has {len(lines):,} lines: write at most {_MOST_RULES:,}")
    return IgnoreRules([*lines, *more])


def _rule(line: str) -> tuple[Callable[[str], object], bool]:
    """Return a function that matches a path (a folder with a slash at its end) to a rule, and whether it skips.

    The rules of pathspec match all files inside a folder, too. Skipped folders are not entered, so a rule must match a
    path itself, and in full. So a last ``*`` becomes ``?*``, which pathspec has no short form for.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # most folders have no rules

    full = _LAST_STARS.sub(lambda stars: f"{stars[1]}{'**/' if stars[2] == '**' else ''}?*", line)
    try:
        rule = GitIgnoreSpecPattern(full)
    except (ValueError, re.error) as error:
        raise DataError(f"the ignore rule {line!r} cannot be understood ({error}): write it anew") from error
    if rule.regex is None or rule.include is None or rule.regex.pattern.count(".+") > _MOST_DEPTHS:
        raise DataError(f"the ignore rule {line!r} cannot be understood: write it anew")
    return re.compile(_straight(rule.regex.pattern)).fullmatch, rule.include


def _straight(pattern: str) -> str:
    """Return the expression of a rule without its returns: what is between two stars is sought at its first place.

    A name with many such places would otherwise be tried with each choice of them.
    """
    start, *parts = pattern.split(_STAR)
    plain = ("/" in part.replace("[^/]", "") or "(?" in part or part is parts[-1] for part in parts)
    return start + "".join(
        _STAR + part if is_plain else f"(?>{_STAR}?{part})" for part, is_plain in zip(parts, plain, strict=True) if part
    )
