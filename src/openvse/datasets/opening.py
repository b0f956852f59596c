"""From what a user types to a corpus or to questions."""

from __future__ import annotations

from pathlib import Path

from openvse.corpus.corpus import Corpus
from openvse.corpus.identical import merge_identical
from openvse.corpus.questions import QuestionSet
from openvse.datasets import flickr8k, flickr30k
from openvse.datasets.coco import detect_coco
from openvse.datasets.daquar import detect_daquar
from openvse.datasets.folder import metadata_files
from openvse.datasets.precomputed import detect_precomputed
from openvse.datasets.question_folder import TABLES, holds_questions
from openvse.datasets.registry import DATASETS, OWN_DATA, QUESTION_SETS, find_loader
from openvse.datasets.source import parse_source
from openvse.datasets.vqa2 import detect_vqa2
from openvse.errors import DataError
from openvse.media.videos import find_clips

_EXPECTED = (
    'expected metadata.jsonl with lines {"file_name": "a.jpg", "captions": ["a sentence"]}, metadata.csv, '
    "a .csv or .tsv file, the files of Flickr or COCO, or train_ims.npy with train_caps.txt"
)


def open_corpus(source: str | Path, *, require_images: bool = True, merge_captions: bool = True) -> Corpus:
    """Open a data set.

    In data of one's own (``OWN_DATA``), captions of different images that are equal but for case and white space are
    one text, which is relevant to all of these images. Named benchmarks keep the relevance that is published.

    Args:
        source: ``NAME:ROOT``, for instance ``flickr8k:/data/f8k``, or a path whose kind is found out: a folder
            with ``metadata.jsonl`` or ``metadata.csv``, a ``.csv`` or ``.tsv`` file, or a folder with the files of
            Flickr, COCO or the precomputed layout. A question set (see ``open_questions``) opens as its images with
            the questions as their captions, so that features of them can be extracted and their copy checked.
        require_images: False when stored features stand in for the image files.
        merge_captions: False keeps every caption of one's own data a text by itself, relevant to its own image alone.

    Raises:
        DataError: when nothing is there, the kind cannot be found out, or the data are not usable.
        RecipeError: for an unknown data set name.
    """
    name, root = parse_source(source, {*DATASETS, *QUESTION_SETS})
    if not root.exists() and name != "openmoji":
        raise DataError(f"{root}: there is no such file or folder; check the path")
    name = name or _detect(root)
    opened = find_loader(name)(root, require_images=require_images)
    if isinstance(opened, QuestionSet):
        return opened.as_corpus()
    return merge_identical(opened) if merge_captions and name in OWN_DATA else opened


def open_questions(source: str | Path, *, require_images: bool = True) -> QuestionSet:
    """Open questions about images.

    Args:
        source: ``NAME:ROOT``, for instance ``vqa2:/data/vqa``, or a path whose kind is found out: a folder with the
            files of VQA 2.0 or DAQUAR, a folder with ``metadata.jsonl`` or ``metadata.csv``, or such a file.
        require_images: False when stored features stand in for the image files.

    Raises:
        DataError: when nothing is there, the kind cannot be found out, or the data are not usable.
        RecipeError: for an unknown name.
    """
    name, root = parse_source(source, QUESTION_SETS)
    if not root.exists():
        raise DataError(f"{root}: there is no such file or folder; check the path")
    return QUESTION_SETS.get(name or _detect_questions(root))(root, require_images=require_images)


def _detect(root: Path) -> str:
    """Return the name of the data set or question set that fits a path."""
    if root.is_file():
        if root.suffix.lower() in (".csv", ".tsv"):
            return "question_folder" if holds_questions(root) else "csv"
        raise DataError(f"{root}: not a data set ({_EXPECTED})")
    files = metadata_files(root)
    if files:
        return "question_folder" if holds_questions(files[0]) else "folder"
    if detect_precomputed(root):
        return "precomputed"
    if detect_coco(root):
        return "coco"
    name = _published_questions(root) or _flickr(root)
    if name:
        return name
    count = len(find_clips(root))
    raise DataError(f"{root}: {count or 'no'} image(s) and no captions there ({_EXPECTED})")


def _detect_questions(root: Path) -> str:
    """Return the name of the question set that fits a path."""
    if root.is_file() and root.suffix.lower() not in TABLES:
        raise DataError(f"{root}: not a file of questions; give one of {', '.join(TABLES)}, or a folder")
    return _published_questions(root) or "question_folder"


def _published_questions(root: Path) -> str:
    """Return the name of the published question set whose files a folder holds, or ""."""
    if detect_vqa2(root):
        return "vqa2"
    return "daquar" if detect_daquar(root) else ""


def _flickr(root: Path) -> str:
    """Return the name of the Flickr set whose files a folder holds, or ""; files that fit both are Flickr8k's."""
    layouts = (flickr8k.LAYOUT, flickr30k.LAYOUT)
    return next((layout.name for layout in layouts if layout.fits(root)), "")
