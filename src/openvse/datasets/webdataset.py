"""WebDataset shards: tar archives in which ``key.jpg`` and ``key.txt`` or ``key.json`` make an item."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.layout import named_splits
from openvse.datasets.rows import check_size, read_captions, read_split
from openvse.errors import DataError
from openvse.media.listing import LeftOut, kind_left_out, walk_files
from openvse.media.names import escaped, is_image, is_video_name
from openvse.media.packed import FileSlice

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def open_webdataset(root: Path, *, require_images: bool = True) -> Corpus:
    """Open WebDataset shards.

    A shard is an uncompressed .tar archive; members whose names agree up to the first dot form an item: ``0001.jpg``
    with ``0001.txt`` (one caption per line), or ``0001.json`` with a key ``captions``, ``caption``, ``text`` or
    ``description``, and optionally ``split``. If the names of shards contain splits (``train-0000.tar``,
    ``val-0000.tar``), these are the splits. Nothing is unpacked: images are read from their places in the archives.

    Args:
        root: a folder of shards, at any depth, or one shard. The identifier of an image is ``SHARD/MEMBER``.
        require_images: see ``build_corpus``; the images are always there.

    Raises:
        DataError: there are no shards, one is compressed, a member has a value of a wrong type (shard, member and key
            are named), or see ``build_corpus``.
    """
    folder = root.parent if root.is_file() else root
    shards = [root] if root.is_file() else find_shards(root)
    if not shards:
        raise DataError(f"{root}: no .tar archive there; check the folder")
    return shards_corpus(root, named_splits(shards, folder), require_images=require_images)


def shards_corpus(root: Path, shards: Mapping[Path, str], *, require_images: bool) -> Corpus:
    """Join shards, each with a split or "", into a corpus; ``root`` gives its name."""
    folder = root.parent if root.is_file() else root
    records: list[Record] = []
    problems: list[str] = []
    left_out: dict[str, list[Path]] = {}
    for shard, split in shards.items():
        place = shard.relative_to(folder).with_suffix("").as_posix()
        for item in _read_shard(shard, left_out, problems):
            if item.image is not None:
                name = f"{place}/{item.image.name}"
                records.append(Record(name, item.image, item.captions or (), item.split or split))
    corpus = build_corpus(root.resolve().name, records, require_images=require_images)
    if left_out:
        problems.append(LeftOut(left_out).describe())
    return replace(corpus, problems=(*corpus.problems, *problems))


def find_shards(root: Path) -> list[Path]:
    """List the tar archives below a folder; raise DataError for compressed ones, which cannot be read at any place."""
    files = sorted(walk_files(root))
    packed = next((path for path in files if path.name.lower().endswith(_COMPRESSED)), None)
    shards = [path for path in files if path.suffix.lower() == ".tar"]
    if packed is not None and not shards:
        raise DataError(f"{packed}: compressed archives are not read; decompress it to .tar")
    return shards


@dataclass
class _Item:
    image: FileSlice | None = None
    captions: list[str] | None = None
    split: str = ""

    def ends_within(self, size: int) -> bool:
        return self.image is not None and self.image.offset + self.image.size <= size


def _read_shard(path: Path, left_out: dict[str, list[Path]], problems: list[str]) -> Iterable[_Item]:
    """Return the items of a shard; add what is left out, and a line if the shard is cut off."""
    items: dict[str, _Item] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            _read_members(path, archive, items, left_out)
    except tarfile.TarError as error:
        if not items:
            raise DataError(
                f"{path}: not a tar archive, or a compressed or damaged one ({error}); "
                "decompress it, or get it again"
            ) from error
        size = path.stat().st_size
        items = {key: item for key, item in items.items() if item.ends_within(size)}
        problems.append(f"{path} ends within a member: its first {len(items)} item(s) are used; get it again")
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}); check the path") from error
    return items.values()


def _read_members(
    path: Path, archive: tarfile.TarFile, items: dict[str, _Item], left_out: dict[str, list[Path]]
) -> None:
    """Collect the members one after the other; only regular files count, and nothing is written to disk."""
    for member in archive:
        folder, slash, name = member.name.rpartition("/")
        if not member.isreg() or member.sparse is not None or name.startswith("."):
            continue
        stem, _, ending = name.partition(".")
        item = items.setdefault(f"{folder}{slash}{stem}", _Item())
        if is_image(f"x.{ending}") or is_video_name(f"x.{ending}"):
            if item.image is None:
                item.image = FileSlice(path, member.name, member.offset_data, member.size)
        elif kind := kind_left_out(name, videos=True):
            left_out.setdefault(kind, []).append(path / member.name)
        elif ending in ("txt", "caption", "json"):
            _read_text(path, archive, member, item, ending)


def _read_text(
    path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, item: _Item, ending: str
) -> None:
    """Read the captions of a member; text takes precedence over JSON."""
    where = f"{path}, member {escaped(member.name)}"
    check_size(where, member.size)
    file = archive.extractfile(member)
    content = file.read() if file else b""
    try:
        text = content.decode("utf-8-sig")
        if ending != "json":
            item.captions = [line.strip() for line in text.split("\n") if line.strip()]
            return
        entry = json.loads(text)
        if not isinstance(entry, dict):
            raise DataError('not an object; write {"caption": "a sentence"}')
        said, item.split = read_captions(entry), read_split(entry)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} is not UTF-8; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg}); write an object") from error
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if item.captions is None:
        item.captions = said
