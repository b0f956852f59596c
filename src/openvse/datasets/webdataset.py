"""WebDataset shards: tar archives in which ``key.jpg`` and ``key.txt`` or ``key.json`` make an item."""

from __future__ import annotations

import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import equal_content
from openvse.datasets.rows import captions_in, check_size, named_splits, read_record
from openvse.errors import DataError, TextError, decoded_text, message_of
from openvse.files import parse_json
from openvse.media.listing import FileSlice, LeftOut, Problem, kind_left_out, walk_files
from openvse.media.names import escaped, is_image, is_video_name

_TEXTS = ("txt", "caption", "json")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def open_webdataset(root: Path, *, require_images: bool = True) -> Corpus:
    """Open WebDataset shards.

    A shard is an uncompressed .tar archive. Members whose names agree up to the first dot form an item: ``0001.jpg``
    with ``0001.txt`` (one caption per line), or ``0001.json`` with a key of captions (``openvse list data table``), and
    optionally ``split``. The rest after the first dot is the field, so ``0001.left.jpg`` is not the image of ``0001``.
    Of members that occur twice, the last image and caption that belong to one copy count. The others are reported. If
    the names of shards contain splits (``train-0000.tar``, ``val-0000.tar``), these are the splits. Nothing is
    unpacked: images are read from their places in the archives. The identifier of an image is ``SHARD/MEMBER``.
    """
    folder = root.parent if root.is_file() else root
    shards = [root] if root.is_file() else find_shards(root) if root.is_dir() else []
    if not shards:
        raise DataError(f"{root}: no .tar archive there: check the folder")
    return shards_corpus(root, named_splits(shards, folder), require_images=require_images)


def shards_corpus(root: Path, shards: Mapping[Path, str], *, require_images: bool) -> Corpus:
    """Join shards, each with a split or "", into a corpus. ``root`` gives its name."""
    folder = root.parent if root.is_file() else root
    records: list[Record] = []
    problems: list[str] = []
    passed = _PassedOver()
    for shard, split in shards.items():
        place = shard.relative_to(folder).with_suffix("").as_posix()
        for item in _read_shard(shard, passed, problems):
            if item.image is not None:
                name = f"{place}/{item.image.name}"
                records.append(Record(name, item.image, item.captions or (), item.split or split))
    corpus = build_corpus(root.resolve().name, records, require_images=require_images)
    problems += passed.problems()
    return replace(corpus, problems=(*corpus.problems, *problems))


def find_shards(root: Path) -> list[Path]:
    """List the tar archives below a folder. Raise DataError for compressed ones, which cannot be read at any place."""
    files = sorted(walk_files(root))
    packed = next((path for path in files if path.name.lower().endswith(_COMPRESSED)), None)
    shards = [path for path in files if path.suffix.lower() == ".tar"]
    if packed is not None and not shards:
        raise DataError(f"{packed}: compressed archives are not read: decompress it to .tar")
    return shards


_DOTTED = "member(s) with a dot in the field, which begins at the first dot of the name: rename them"
_SECOND = "further image(s) of an item"
_REPEATED = "key(s) that occur twice: image and captions are taken from one copy; write each key once"


@dataclass
class _PassedOver:
    """Unread members of shards: files by kind, and the others by the reason."""

    left_out: defaultdict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    members: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def problems(self) -> Iterator[Problem]:
        """Yield a line for each reason and kind that there is."""
        for reason, cases in self.members.items():
            done = "repeated:" if reason is _REPEATED else "left out"
            yield Problem(f"{done} {len(cases)} {reason}", cases, fault=reason is _REPEATED)
        if self.left_out:
            yield LeftOut(self.left_out).describe()


@dataclass
class _Item:
    """A copy of an item, with the fields that were read, and which occurrence in the shard each of them is."""

    image: FileSlice | None = None
    captions: list[str] | None = None
    split: str = ""
    fields: dict[str, int] = field(default_factory=dict)


def _read_shard(path: Path, passed: _PassedOver, problems: list[str]) -> Iterable[_Item]:
    """Return the items of a shard. Add a line for omitted items, and another if the shard is cut off."""
    copies: dict[str, list[_Item]] = {}
    ends = ""
    try:
        with tarfile.open(path, "r:") as archive:
            _read_members(path, archive, copies, passed)
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}): check the path") from error
    except (tarfile.TarError, ArithmeticError, LookupError, MemoryError, ValueError) as error:  # of odd headers
        ends = message_of(error)
        if not copies:
            raise DataError(
                f"{path}: not a tar archive, or a compressed or damaged one ({ends}): decompress it, or get it again"
            ) from error
    items = [item for key, group in copies.items() if (item := _one_copy(path, key, group, passed))]
    if ends:
        size = path.stat().st_size
        items = [item for item in items if item.image is not None and item.image.offset + item.image.size <= size]
        text = f"{path} ends within a member: its first {len(items)} item(s) are used; get it again"
        problems.append(Problem(text, fault=True))
    return items


def _one_copy(path: Path, key: str, copies: Sequence[_Item], passed: _PassedOver) -> _Item | None:
    """Return the last copy of an item whose image and captions certainly belong together.

    Members that occur again begin a new copy. Members of one copy are the same occurrence of their fields, unless some
    members are repeated and others are not. Such a copy may mix an old image and a new caption.
    """
    if len(copies) == 1:
        return copies[0]
    sure = [item for item in copies if item.captions and item.image and len(set(item.fields.values())) == 1]
    if not sure:
        passed.members[_REPEATED].append(f"{path}: {key} (left out: its image and captions may be of different copies)")
        return None
    chosen = sure[-1]
    images = [item.image for item in sure if item.image]
    if len(sure) == len(copies) and any(len(same) == len(images) for same in equal_content(images)):
        captions = [caption for item in sure for caption in item.captions or ()]
        return replace(chosen, captions=list(dict.fromkeys(captions)))
    passed.members[_REPEATED].append(f"{path}: {key}")
    return chosen


def _read_members(path: Path, archive: tarfile.TarFile, copies: dict[str, list[_Item]], passed: _PassedOver) -> None:
    """Collect the members one after the other. Only regular files count, and nothing is written to disk."""
    counts: Counter[tuple[str, str]] = Counter()
    for member in archive:
        folder, slash, name = member.name.rpartition("/")
        if not member.isreg() or member.sparse is not None or name.startswith("."):
            continue
        stem, _, ending = name.partition(".")
        ending = ending.lower()
        media = is_image(f"x.{ending}") or is_video_name(f"x.{ending}")
        if kind := kind_left_out(name, videos=True):
            passed.left_out[kind].append(path / member.name)
        elif "." in ending and (media or ending.rpartition(".")[2] in _TEXTS):
            passed.members[_DOTTED].append(f"{path}: {member.name}")
        elif media or ending in _TEXTS:
            key = f"{folder}{slash}{stem}"
            group = copies.setdefault(key, [_Item()])
            if ending in group[-1].fields:
                group.append(_Item())
            item = group[-1]
            counts[key, ending] += 1
            item.fields[ending] = counts[key, ending]
            if not media:
                _read_text(path, archive, member, item, ending)
            elif item.image is None:
                item.image = FileSlice(path, member.name, member.offset_data, member.size)
            else:
                passed.members[_SECOND].append(f"{path}: {member.name}")


def _read_text(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, item: _Item, ending: str) -> None:
    """Read the captions of a member. Text takes precedence over JSON."""
    where = f"{path}, member {escaped(member.name)}"
    check_size(where, member.size)
    file = archive.extractfile(member)
    content = file.read() if file else b""
    try:
        text = decoded_text(content, where)
        if ending != "json":
            lines = filter(None, map(str.strip, text.split("\n")))
            item.captions = [each for line in lines for each in captions_in("caption", line)]
            return
        record = read_record(parse_json(text), path.parent, place=path)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except TextError as error:
        raise DataError(str(error)) from error
    item.split = record.split
    if item.captions is None:
        item.captions = list(record.captions)
