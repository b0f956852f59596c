"""The data sets by name: the contract of a loader, the registry, and the opening of what a user names.

A new data set takes a file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from openvse.corpus.corpus import Corpus, merge_identical
from openvse.corpus.facts import Facts
from openvse.datasets.folder import (
    describe_other_tables,
    detect_sidecars,
    lone_tables,
    metadata_files,
    open_folder,
    open_sidecars,
    open_table,
)
from openvse.datasets.hf import SAVED, open_hf
from openvse.datasets.openmoji import open_openmoji
from openvse.datasets.parquet import ARROW_SUFFIXES, find_arrow, open_parquet
from openvse.datasets.rows import USUAL, Columns, refuse_outside
from openvse.datasets.webdataset import find_shards, open_webdataset
from openvse.errors import DataError, NoCaptionsError, RecipeError, nearest
from openvse.media.listing import list_media
from openvse.registry import Registry, installed, load_part


@runtime_checkable
class OtherData(Protocol):
    """Data of another task than retrieval, such as questions about images, of which each sentence is about an image."""

    @property
    def image_ids(self) -> Sequence[str]:
        """The identifiers of the images."""

    @property
    def image_paths(self) -> Sequence[Path]:
        """The files of the images."""

    def as_corpus(self) -> Corpus:
        """Return the images with their sentences as captions, so that features can be made and a copy checked."""


@runtime_checkable
class Loader(Protocol):
    """A function that opens a data set."""

    def __call__(self, root: Path, /, *, require_images: bool) -> Corpus | OtherData:
        """Return the data at a place: images or clips with captions, or data of another task.

        Args:
            root: the folder or file of the data set.
            require_images: whether to leave out images without a file. False if stored features replace the files.

        Raises:
            DataError: the data are missing or cannot be used.
        """


@dataclass(frozen=True)
class DataSet:
    """A data set with what is known of it before it is opened. A call opens it.

    Attributes:
        facts: the facts of the published copy, of the same name.
        own: whether it is a form of users' own data, whose files may name any image path.
    """

    opens: Loader
    facts: Facts | None = None
    own: bool = False

    def __call__(self, root: Path, /, *, require_images: bool) -> Corpus | OtherData:
        """Open the data set. See ``Loader``."""
        return self.opens(root, require_images=require_images)


class DataSets(Registry[Corpus | OtherData]):
    """Data sets by name: the loader of each, and the facts of published ones.

    To add your own data set, put one line in your own file: ``DATASETS.add("mine", open_mine)``. With ``facts=MINE``,
    ``openvse list data`` and ``openvse data check`` describe and check it like the published ones. An installed package
    adds a ``DataSet``, or only a loader.
    """

    listed_by: ClassVar[str] = "openvse list data"

    def add(self, name: str, part: Loader, *, facts: Facts | None = None) -> None:
        """Register a loader under a name, with the facts of the published copy, which have the same name."""
        if facts is not None and facts.name != name:
            raise RecipeError(f"{self.kind} {name!r} comes with the facts of {facts.name!r}: give both one name")
        super().add(name, part if facts is None else DataSet(part, facts))

    def loader(self, name: str) -> Loader:
        """Return the function that opens a data set. RecipeError names the known ones if it is none."""
        part = self.get(name)
        return part.opens if isinstance(part, DataSet) else part

    def facts(self, name: str) -> Facts | None:
        """Return the facts of a published data set, or None for another name."""
        facts: Facts | None = getattr(self.get(name), "facts", None) if name in self else None
        return facts

    def is_own(self, name: str) -> bool:
        """Return whether a name is a form of users' own data, whose files may name any image path."""
        return bool(getattr(self.get(name), "own", False))


_BUILT_IN: Mapping[str, Any] = {
    "hf": DataSet(open_hf, own=True),
    "folder": DataSet(open_folder, own=True),
    "openmoji": open_openmoji,
    "parquet": DataSet(open_parquet, own=True),
    "sidecars": DataSet(open_sidecars, own=True),
    "table": DataSet(open_table, own=True),
    "webdataset": DataSet(open_webdataset, own=True),
}

DATASETS = DataSets("data set", _BUILT_IN)
"""All data sets: the forms of users' own data, and published ones, which packages add."""


def parse_source(source: str | Path) -> tuple[str, Path]:
    """Split ``NAME:ROOT``, with "" as the name if the source is a path.

    A path may hold a colon: a word before it that is no registered name counts as a name only if no such path exists.
    """
    name, colon, root = str(source).partition(":")
    if colon and (name in DATASETS or (name.isidentifier() and len(name) > 1 and not Path(source).exists())):
        return name, Path(root).expanduser()
    return "", Path(source).expanduser()


_EXPECTED = (
    'expected metadata.jsonl with lines {"file_name": "a.jpg", "captions": ["a sentence"]}, a .csv, .tsv, .jsonl or '
    ".parquet file, a.txt next to a.jpg, .tar shards, the files of Flickr or COCO, or train_ims.npy with train_caps.txt"
)
_NEEDS_NO_FOLDER = ("openmoji", "hf")
Detect: TypeAlias = Callable[[Path], str]
"""A function that returns the name of the data set that fits a path, or "" if it knows none.

An installed package adds one as ``layout.NAME``. It is asked before the forms of users' own data."""


def open_corpus(
    source: str | Path,
    *,
    require_images: bool = True,
    allow_outside: bool = False,
    merge_captions: bool = True,
    questions: bool = True,
) -> Corpus:
    """Open a data set.

    In your own data, captions of different images that are equal except for case and white space are one text, which is
    relevant to all of these images. Published data keep their relevance, as do those of the hub, which holds
    benchmarks, too.

    Args:
        source: ``NAME:ROOT``, for instance ``flickr8k:/data/f8k`` or ``hf:owner/name``, or a path whose kind is
            detected: a folder with ``metadata.jsonl`` or ``metadata.csv``, a table, text files next to the images,
            WebDataset shards, Parquet files of the Hugging Face hub, the files of Flickr, COCO or the precomputed
            layout, or such a table or shard itself. ``#image=COLUMN,caption=COLUMN,id=COLUMN`` after it names the
            columns of a table, Parquet file or data set of the hub (see ``Columns``). Data of
            another task open as their images with their sentences as captions (``OtherData``).
        require_images: False if stored features replace the image files.
        allow_outside: whether images may be outside the folder of your own data. See ``refuse_outside``.
        questions: False refuses data of another task. Questions do not describe images, so they cannot be ranked.
        merge_captions: False keeps every caption of your own data a separate text, relevant only to its own image.

    Raises:
        DataError: the source is missing, its kind cannot be detected, an image is outside the folder, or the data
            cannot be used or are questions.
        RecipeError: the name of the data set is unknown.
    """
    name, opened = open_named(source, detect_data, require_images=require_images, allow_outside=allow_outside)
    if not isinstance(opened, Corpus) and not questions:
        raise DataError(f"{source} holds questions: give data with captions, or a model that answers questions")
    if not isinstance(opened, Corpus):
        return opened.as_corpus()
    return merge_identical(opened) if merge_captions and name != "hf" and DATASETS.is_own(name) else opened


def open_named(
    source: str | Path, detect: Detect, *, require_images: bool = True, allow_outside: bool = False
) -> tuple[str, Corpus | OtherData]:
    """Return the name of a data set, as the user gave it or as it is detected, and its content. See ``open_corpus``."""
    name, place = parse_source(source)
    root, columns = columns_of(place)
    if not root.exists() and name not in _NEEDS_NO_FOLDER:
        raise DataError(f"{root}: there is no such file or folder: check the path")
    if columns.named:
        name = name or _detect_rows(root)
        if name not in _ROWS:
            raise DataError(f"{source}: {name} has no columns: name columns only for {', '.join(_ROWS)}")
        opened: Corpus | OtherData = _ROWS[name](root, require_images=require_images, columns=columns)
    else:
        name = name or detect(root)
        opened = DATASETS.get(name)(root, require_images=require_images)
    if DATASETS.is_own(name) and root.exists() and not allow_outside:
        refuse_outside(root, zip(opened.image_ids, opened.image_paths, strict=True))
    return name, opened


def columns_of(place: Path) -> tuple[Path, Columns]:
    """Split ``ROOT#image=COLUMN,caption=COLUMN,id=COLUMN``, where the configuration of a hub data set may come first.

    A path that exists may hold ``#``.
    """
    root, _, words = str(place).rpartition("#")
    if not root or "=" not in words or place.exists():
        return place, USUAL
    first, *rest = words.split(",")
    config, pairs = ("", [first, *rest]) if "=" in first else (f"#{first}", rest)
    columns: dict[str, list[str]] = {"image": [], "caption": [], "id": []}
    for key, _, column in (pair.partition("=") for pair in pairs):
        if key not in columns or not column or (columns[key] and key != "caption"):
            raise DataError(
                f"{place}: {f'{key}={column}'!r} cannot be read: write image=COLUMN, id=COLUMN (each at most once) or "
                f"caption=COLUMN with commas between them{nearest(key, list(columns)) if key not in columns else ''}"
            )
        columns[key].append(column)
    return Path(root + config), Columns("".join(columns["image"]), tuple(columns["caption"]), "".join(columns["id"]))


_LAYOUTS: Sequence[tuple[str, Callable[[Path], bool]]] = (
    ("folder", lambda root: bool(metadata_files(root))),
    ("hf", lambda root: (root / SAVED).is_file()),
    # Parquet and Arrow files have layouts of their own.
    ("folder", lambda root: any(path.suffix.lower() not in ARROW_SUFFIXES for path in lone_tables(root))),
    ("webdataset", lambda root: bool(find_shards(root))),
    ("sidecars", detect_sidecars),
    ("hf", lambda root: (root / "README.md").is_file() and bool(find_arrow(root))),
    ("parquet", lambda root: bool(find_arrow(root))),
)
"""The tests of whether a folder holds data of a form. The first that succeeds counts."""

_SUFFIXES = {".csv": "table", ".tsv": "table", ".jsonl": "table", ".tar": "webdataset"}
_SUFFIXES |= dict.fromkeys(ARROW_SUFFIXES, "parquet")


_ROWS: Mapping[str, Callable[..., Corpus]] = {
    "folder": open_folder,
    "hf": open_hf,
    "parquet": open_parquet,
    "table": open_table,
}
"""The loaders of data in rows, which accept names of columns."""


def _detect_rows(root: Path) -> str:
    """Return the name of the data in rows that fits a path. A table with unknown columns is in a folder."""
    if root.is_file():
        return _SUFFIXES.get(root.suffix.lower(), "table")
    return next((name for name, fits in _LAYOUTS if name in _ROWS and fits(root)), "folder")


def detect_data(root: Path) -> str:
    """Return the name of the data set that fits a path. Raise DataError if none does."""
    for entry in installed("layout").values():
        if name := str(load_part(entry)(root)):
            return name
    if root.is_file():
        if (suffix := root.suffix.lower()) not in _SUFFIXES:
            raise DataError(f"{root}: not a data set ({_EXPECTED})")
        return _SUFFIXES[suffix]
    for name, fits in _LAYOUTS:
        if fits(root):
            return name
    listing = list_media(root, videos=True)
    reason = describe_other_tables(root)
    state = f"{root}: {len(listing.paths) or 'no'} image(s) and no captions there ({reason or _EXPECTED})"
    kind = NoCaptionsError if listing.paths and not reason else DataError  # a table may have other names
    raise kind("; ".join((state, *listing.problems())))
