"""Opening of a corpus or questions by a name or path from the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openvse.corpus.corpus import Corpus, merge_identical
from openvse.corpus.questions import QuestionSet
from openvse.datasets.coco import detect_coco
from openvse.datasets.daquar import detect_daquar
from openvse.datasets.flickr import FLICKR8K_LAYOUT, FLICKR30K_LAYOUT
from openvse.datasets.folder import metadata_files, open_folder
from openvse.datasets.hf import SAVED, open_hf
from openvse.datasets.layout import OWN_DATA, refuse_outside
from openvse.datasets.parquet import ARROW_SUFFIXES, find_arrow, open_parquet
from openvse.datasets.precomputed import find_folder
from openvse.datasets.question_folder import TABLES as QUESTION_TABLES
from openvse.datasets.question_folder import holds_questions
from openvse.datasets.registry import DATASETS, parse_source
from openvse.datasets.rows import USUAL, Columns
from openvse.datasets.sidecars import detect_sidecars
from openvse.datasets.table import describe_other_tables, lone_tables, open_table
from openvse.datasets.vqa2 import detect_vqa2
from openvse.datasets.webdataset import find_shards
from openvse.errors import DataError, NoCaptionsError, nearest
from openvse.media.listing import list_media

_EXPECTED = (
    'expected metadata.jsonl with lines {"file_name": "a.jpg", "captions": ["a sentence"]}, a .csv, .tsv, .jsonl or '
    ".parquet file, a.txt next to a.jpg, .tar shards, the files of Flickr or COCO, or train_ims.npy with train_caps.txt"
)
_NEEDS_NO_FOLDER = ("openmoji", "hf")
OWN_CAPTIONS = OWN_DATA - {"hf"}
"""Users' own data, in which identical captions of different images mean the same. The hub also holds benchmarks."""


def open_corpus(
    source: str | Path,
    *,
    require_images: bool = True,
    allow_outside: bool = False,
    merge_captions: bool = True,
    questions: bool = True,
) -> Corpus:
    """Open a data set.

    In your own data (``OWN_CAPTIONS``), captions of different images that are equal except for case and white space are
    one text, which is relevant to all of these images. Named benchmarks keep their published relevance.

    Args:
        source: ``NAME:ROOT``, for instance ``flickr8k:/data/f8k`` or ``hf:owner/name``, or a path whose kind is
            detected: a folder with ``metadata.jsonl`` or ``metadata.csv``, a table, text files next to the images,
            WebDataset shards, Parquet files of the Hugging Face hub, the files of Flickr, COCO or the precomputed
            layout, or such a table or shard itself. ``#image=COLUMN,caption=COLUMN,id=COLUMN`` after it names the
            columns of a table, Parquet file or data set of the hub (see ``Columns``). A question set (see
            ``open_questions``) opens as its images with the questions as their captions, so that features can be
            extracted and the copy checked.
        require_images: False if stored features replace the image files.
        allow_outside: whether images may be outside the folder of your own data. See ``refuse_outside``.
        questions: False refuses a question set. Its questions do not describe its images, so ranking them has no
            meaning.
        merge_captions: False keeps every caption of your own data a separate text, relevant only to its own image.

    Raises:
        DataError: the source is missing, its kind cannot be detected, an image is outside the folder, or the data
            cannot be used or are questions.
        RecipeError: the name of the data set is unknown.
    """
    name, opened = _open(source, _detect, require_images, allow_outside)
    if isinstance(opened, QuestionSet) and not questions:
        raise DataError(
            f"{source} holds questions, which do not describe their images: give data with captions, or evaluate or "
            f"train a model that answers questions"
        )
    corpus = opened.as_corpus() if isinstance(opened, QuestionSet) else opened
    merged = merge_captions and name in OWN_CAPTIONS and not isinstance(opened, QuestionSet)
    return merge_identical(corpus) if merged else corpus


def open_questions(
    source: str | Path, *, require_images: bool = True, allow_outside: bool = False
) -> QuestionSet:
    """Open questions about images.

    Args:
        source: ``NAME:ROOT``, for instance ``vqa2:/data/vqa``, or a path whose kind is detected: a folder with the
            files of VQA 2.0 or DAQUAR, a folder with ``metadata.jsonl`` or ``metadata.csv``, or such a file.
        require_images: False if stored features replace the image files.

    Raises:
        DataError: the source is missing, its kind cannot be detected, the data hold captions, or they cannot be used.
        RecipeError: the name is unknown.
    """
    _, opened = _open(source, _detect_questions, require_images, allow_outside)
    if not isinstance(opened, QuestionSet):
        raise DataError(f"{source} holds captions and no questions: give data with questions")
    return opened


def _open(
    source: str | Path, detect: Callable[[Path], str], require_images: bool, allow_outside: bool
) -> tuple[str, Corpus | QuestionSet]:
    """Return the name of a data set, as the user gave it or as it is detected, and its content."""
    name, place = parse_source(source)
    root, columns = columns_of(place)
    if not root.exists() and name not in _NEEDS_NO_FOLDER:
        raise DataError(f"{root}: there is no such file or folder: check the path")
    if columns.named:
        name = name or _detect_rows(root)
        if name not in _ROWS:
            raise DataError(f"{source}: {name} has no columns: name columns only for {', '.join(_ROWS)}")
        opened: Corpus | QuestionSet = _ROWS[name](root, require_images=require_images, columns=columns)
    else:
        name = name or detect(root)
        opened = DATASETS.get(name)(root, require_images=require_images)
    if name in OWN_DATA and root.exists() and not allow_outside:
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
    ("question_folder", lambda root: any(map(holds_questions, metadata_files(root)[:1]))),
    ("folder", lambda root: bool(metadata_files(root))),
    ("precomputed", lambda root: find_folder(root) is not None),
    ("coco", detect_coco),
    ("vqa2", detect_vqa2),
    ("daquar", detect_daquar),
    ("flickr8k", FLICKR8K_LAYOUT.fits),  # files that fit both sets of Flickr are Flickr8k's
    ("flickr30k", FLICKR30K_LAYOUT.fits),
    ("hf", lambda root: (root / SAVED).is_file()),
    # Parquet and Arrow files have layouts of their own.
    ("folder", lambda root: any(path.suffix.lower() not in ARROW_SUFFIXES for path in lone_tables(root))),
    ("webdataset", lambda root: bool(find_shards(root))),
    ("sidecars", detect_sidecars),
    ("hf", lambda root: (root / "README.md").is_file() and bool(find_arrow(root))),
    ("parquet", lambda root: bool(find_arrow(root))),
)
"""The tests of whether a folder holds a data set or question set. The first that succeeds counts."""

_SUFFIXES = {".csv": "table", ".tsv": "table", ".jsonl": "table", ".tar": "webdataset"}
_SUFFIXES |= dict.fromkeys(ARROW_SUFFIXES, "parquet")


_QUESTIONS = ("question_folder", "vqa2", "daquar")


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


def _detect(root: Path) -> str:
    """Return the name of the data set or question set that fits a path."""
    if root.is_file():
        if (suffix := root.suffix.lower()) in QUESTION_TABLES and holds_questions(root):
            return "question_folder"
        if suffix not in _SUFFIXES:
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


def _detect_questions(root: Path) -> str:
    """Return the name of the question set that fits a path."""
    if root.is_file() and root.suffix.lower() not in QUESTION_TABLES:
        raise DataError(
            f"{root}: not a file of questions: give one of {', '.join(QUESTION_TABLES)}, or a folder"
        )
    fitting = (name for name, fits in _LAYOUTS if name in _QUESTIONS and fits(root))
    return next(fitting, "question_folder")
