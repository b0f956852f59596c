"""Data sets of the Hugging Face hub, by name or as a folder in one of the forms of the hub, such as WebDataset shards.

The shards are tar archives in which ``key.jpg`` and ``key.txt`` or ``key.json`` make an item.
"""

from __future__ import annotations

import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import equal_content
from openvse.datasets.folder import open_folder
from openvse.datasets.layout import named_splits, reading_json, refuse_outside
from openvse.datasets.parquet import ARROW_SUFFIXES, arrow_corpus, find_arrow
from openvse.datasets.rows import USUAL, Columns, captions_in, check_size, read_record
from openvse.errors import DataError, RecipeError, TextError, decoded_text, message_of
from openvse.files import parse_json
from openvse.media.listing import LeftOut, Problem, kind_left_out, walk_files
from openvse.media.names import escaped, is_image, is_video_name
from openvse.media.packed import FileSlice
from openvse.specs.load import parse_yaml

_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(@[\w./-]+)?")
SAVED = "dataset_dict.json"
"""The file that identifies a folder which ``DatasetDict.save_to_disk`` wrote."""


def open_hf(root: Path, *, require_images: bool = True, columns: Columns = USUAL) -> Corpus:
    """Open a data set of the Hugging Face hub.

    ``hf:NAME`` downloads a data set (``hf:owner/name``, or ``hf:owner/name@revision``) into the hub's cache and opens
    it. ``hf:FOLDER`` opens a folder with the files of one: Parquet files with a column ``image``, WebDataset shards, an
    imagefolder, or the output of ``Dataset.save_to_disk``. Splits come from the ``configs`` in README.md, otherwise
    from the names of files and folders. ``hf:NAME#CONFIG`` names one of several configurations. Columns have the names
    of ``openvse list data table``, or are named: ``hf:NAME#image=photo,caption=alt``, or after the configuration
    ``hf:NAME#CONFIG,caption=alt``.
    """
    folder, config = _located(root)
    corpus = _open_local(folder, config, columns, require_images)
    if not root.is_dir():  # downloaded data never read other files of this machine, whatever is allowed
        refuse_outside(folder, zip(corpus.image_ids, corpus.image_paths, strict=True))
    return corpus


def _open_local(folder: Path, config: str, columns: Columns, require_images: bool) -> Corpus:
    if (folder / SAVED).is_file():
        return arrow_corpus(folder, _saved(folder), columns, require_images=require_images)
    if configs := read_configs(folder / "README.md"):
        files = _files_of(folder, choose_config(folder, configs, config))
    elif config:
        raise DataError(
            f"{folder}: README.md names no configuration, but {config!r} is requested: leave it out"
        )
    else:
        files = named_splits(find_arrow(folder) or find_shards(folder), folder)
    if not files:
        return open_folder(folder, require_images=require_images, columns=columns)
    if next(iter(files)).suffix.lower() in ARROW_SUFFIXES:
        return arrow_corpus(folder, files, columns, require_images=require_images)
    if columns.named:
        raise DataError(f"{folder}: WebDataset shards have no columns: leave out the named columns")
    return shards_corpus(folder, files, require_images=require_images)


@dataclass(frozen=True)
class HubConfig:
    """A configuration in the head of README.md. ``files`` are pairs of a split and a pattern of paths."""

    name: str
    default: bool
    files: tuple[tuple[str, str], ...]


def read_configs(readme: Path) -> list[HubConfig]:
    """Return the configurations with files in the head of a README.md, none if there is no such head.

    Source: the hub's documentation of repository structure (``configs`` with ``config_name`` and ``data_files``, a
    pattern, a list of them, or a list of ``{split, path}``).
    """
    text = readme.read_text(encoding="utf-8-sig", errors="replace") if readme.is_file() else ""
    head = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, flags=re.DOTALL)
    try:
        tree = parse_yaml(head[1]) if head else None
    except RecipeError as error:
        raise DataError(f"{readme}: its head is {error}: correct it") from error
    entries = tree.get("configs") if isinstance(tree, dict) else None
    return [
        HubConfig(str(entry.get("config_name", "default")), entry.get("default") is True, _patterns(entry))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and _patterns(entry)
    ]


def choose_config(folder: Path, configs: list[HubConfig], wanted: str) -> HubConfig:
    """Return a configuration. Raise DataError if it is missing, or if none of several is the default."""
    names = ", ".join(config.name for config in configs)
    if wanted:
        if (chosen := next((config for config in configs if config.name == wanted), None)) is None:
            raise DataError(f"{folder}: no configuration {wanted!r}: use one of {names}")
        return chosen
    marked = [config for config in configs if config.default or config.name == "default"]
    if len(configs) > 1 and not marked:
        raise DataError(f"{folder}: several configurations ({names}): name one, hf:NAME#{configs[0].name}")
    return (marked or configs)[0]


def _patterns(entry: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    files = entry.get("data_files")
    files = files if isinstance(files, list) else [files]
    patterns: list[tuple[str, str]] = []
    for file in files:
        if isinstance(file, str):
            patterns.append(("", file))
        elif isinstance(file, dict):
            paths = file.get("path")
            paths = paths if isinstance(paths, list) else [paths]
            patterns += [(str(file.get("split") or ""), path) for path in paths if isinstance(path, str)]
    return tuple(patterns)


def _files_of(folder: Path, config: HubConfig) -> dict[Path, str]:
    """Return the files of a configuration with their splits. Patterns must stay within the folder."""
    splits: dict[Path, str] = {}
    for split, pattern in config.files:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise DataError(
                f"{folder}: configuration {config.name!r} names {pattern!r}, outside of the folder"
            )
        for path in sorted(folder.glob(pattern)):
            if path.suffix.lower() in (*ARROW_SUFFIXES, ".tar"):
                splits.setdefault(path, split)
    return splits if len(set(splits.values())) > 1 else named_splits(list(splits), folder)


def _saved(folder: Path) -> dict[Path, str]:
    """Return the Arrow files that ``DatasetDict.save_to_disk`` wrote, in a folder for each split."""
    with reading_json(folder / SAVED, "the format of save_to_disk") as tree:
        files = {path: str(name) for name in tree["splits"] for path in find_arrow(folder / name)}
    return files if len(set(files.values())) > 1 else dict.fromkeys(files, "")


def _located(root: Path) -> tuple[Path, str]:
    """Return the folder of a data set, after a download for a name, and the requested configuration."""
    if root.is_dir():
        return root, ""
    place, _, config = str(root).partition("#")
    if Path(place).is_dir():
        return Path(place), config
    if not _NAME.fullmatch(place):
        raise DataError(
            f"{place}: there is no such folder, and it is not a name on the hub; write hf:owner/name"
        )
    return _downloaded(place), config


def _downloaded(name: str) -> Path:
    """Return the cached or downloaded files of a data set. Raise DataError if it cannot be reached."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, repo_type="dataset", revision=revision or None))
    except Exception as error:  # the hub's library raises errors of several other libraries
        raise DataError(
            f"hf:{name}: this is no folder here, and the hub does not give it ({type(error).__name__}: "
            f"{message_of(error)}): check the name and the connection, or give a folder"
        ) from error


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
    shards = [root] if root.is_file() else find_shards(root)
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
    except tarfile.TarError as error:
        ends = str(error)
        if not copies:
            raise DataError(
                f"{path}: not a tar archive, or a compressed or damaged one ({ends}): decompress it, or get it again"
            ) from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}): check the path") from error
    items = [item for key, group in copies.items() if (item := _one_copy(path, key, group, passed))]
    if ends:
        size = path.stat().st_size
        items = [
            item for item in items if item.image is not None and item.image.offset + item.image.size <= size
        ]
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
        passed.members[_REPEATED].append(
            f"{path}: {key} (left out: its image and captions may be of different copies)"
        )
        return None
    chosen = sure[-1]
    images = [item.image for item in sure if item.image]
    if len(sure) == len(copies) and any(len(same) == len(images) for same in equal_content(images)):
        captions = [caption for item in sure for caption in item.captions or ()]
        return replace(chosen, captions=list(dict.fromkeys(captions)))
    passed.members[_REPEATED].append(f"{path}: {key}")
    return chosen


def _read_members(
    path: Path, archive: tarfile.TarFile, copies: dict[str, list[_Item]], passed: _PassedOver
) -> None:
    """Collect the members one after the other. Only regular files count, and nothing is written to disk."""
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
            group = copies.setdefault(f"{folder}{slash}{stem}", [_Item()])
            if ending in group[-1].fields:
                group.append(_Item())
            item = group[-1]
            item.fields[ending] = sum(ending in each.fields for each in group) + 1
            if not media:
                _read_text(path, archive, member, item, ending)
            elif item.image is None:
                item.image = FileSlice(path, member.name, member.offset_data, member.size)
            else:
                passed.members[_SECOND].append(f"{path}: {member.name}")


def _read_text(
    path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, item: _Item, ending: str
) -> None:
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
