"""Opening of a corpus by a name or path from the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from openvse.corpus.corpus import Corpus, merge_identical
from openvse.datasets.folder import metadata_files, open_folder
from openvse.datasets.hf import SAVED, open_hf
from openvse.datasets.layout import refuse_outside
from openvse.datasets.parquet import ARROW_SUFFIXES, find_arrow, open_parquet
from openvse.datasets.registry import DATASETS, OtherData, parse_source
from openvse.datasets.rows import USUAL, Columns
from openvse.datasets.sidecars import detect_sidecars
from openvse.datasets.table import describe_other_tables, lone_tables, open_table
from openvse.datasets.webdataset import find_shards
from openvse.errors import DataError, NoCaptionsError, nearest
from openvse.media.listing import list_media
from openvse.registry import installed, load_part

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
        questions: False refuses data of another task. Questions do not describe their images, so ranking them has no
            meaning.
        merge_captions: False keeps every caption of your own data a separate text, relevant only to its own image.

    Raises:
        DataError: the source is missing, its kind cannot be detected, an image is outside the folder, or the data
            cannot be used or are questions.
        RecipeError: the name of the data set is unknown.
    """
    name, opened = open_named(source, detect_data, require_images=require_images, allow_outside=allow_outside)
    if not isinstance(opened, Corpus) and not questions:
        raise DataError(
            f"{source} holds questions, which do not describe their images: give data with captions, or evaluate or "
            f"train a model that answers questions"
        )
    if not isinstance(opened, Corpus):
        return opened.as_corpus()
    merged = merge_captions and name != "hf" and DATASETS.is_own(name)
    return merge_identical(opened) if merged else opened


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
    return Path(root + config), Columns(
        "".join(columns["image"]), tuple(columns["caption"]), "".join(columns["id"])
    )


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
