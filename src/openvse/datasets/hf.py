"""Data sets of the Hugging Face hub, by name or as a folder in one of the forms of the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus
from openvse.datasets.folder import open_folder
from openvse.datasets.parquet import ARROW_SUFFIXES, arrow_corpus, find_arrow
from openvse.datasets.rows import USUAL, Columns, named_splits, reading_json, refuse_outside
from openvse.datasets.webdataset import find_shards, shards_corpus
from openvse.errors import DataError, RecipeError, message_of
from openvse.specs.load import parse_yaml

_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(@[\w./-]+)?")
_MOST_PATTERNS, _MOST_DEPTHS = 100, 2  # of a configuration, and "**" of a pattern
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
        raise DataError(f"{folder}: README.md names no configuration, but {config!r} is requested: leave it out")
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
    head = re.match(r"---[ \t]*\n(.*?)\n---[ \t]*(\n|$)", text, flags=re.DOTALL)
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
    wild = [pattern for _, pattern in config.files if "*" in pattern or "?" in pattern]
    if len(wild) > _MOST_PATTERNS or any(each.count("**") > _MOST_DEPTHS for each in wild):
        raise DataError(
            f"{folder}: configuration {config.name!r} has more than {_MOST_PATTERNS} patterns, or one with more than "
            f"{_MOST_DEPTHS} times **: name the files"
        )
    for split, pattern in dict.fromkeys(config.files):
        _refuse_leaving(folder, pattern, f"configuration {config.name!r}")
        for path in sorted(folder.glob(pattern)):
            if path.suffix.lower() in (*ARROW_SUFFIXES, ".tar"):
                splits.setdefault(path, split)
    return splits if len(set(splits.values())) > 1 else named_splits(list(splits), folder)


def _refuse_leaving(folder: Path, name: str, where: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(f"{folder}: {where} names {name!r}, outside of the folder")


def _saved(folder: Path) -> dict[Path, str]:
    """Return the Arrow files that ``DatasetDict.save_to_disk`` wrote, in a folder for each split."""
    with reading_json(folder / SAVED, "the format of save_to_disk") as tree:
        names = dict.fromkeys(str(Path(name)) for name in tree["splits"])
        for name in names:
            _refuse_leaving(folder, name, SAVED)
        files = {path: name for name in names for path in find_arrow(folder / name)}
    return files if len(set(files.values())) > 1 else dict.fromkeys(files, "")


def _located(root: Path) -> tuple[Path, str]:
    """Return the folder of a data set, after a download for a name, and the requested configuration."""
    if root.is_dir():
        return root, ""
    place, _, config = str(root).partition("#")
    if Path(place).is_dir():
        return Path(place), config
    if not _NAME.fullmatch(place):
        raise DataError(f"{place}: there is no such folder, and it is not a name on the hub; write hf:owner/name")
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
