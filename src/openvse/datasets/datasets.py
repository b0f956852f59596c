"""From what a user types to a corpus. Adding a data set takes a file of its own and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from openvse.corpus.corpus import Corpus
from openvse.corpus.questions import QuestionSet
from openvse.datasets.coco import detect_coco, open_coco
from openvse.datasets.csv_file import open_csv
from openvse.datasets.flickr import detect_flickr, open_flickr8k, open_flickr30k
from openvse.datasets.folder import metadata_files, open_folder
from openvse.datasets.msr_vtt import open_msr_vtt, open_msr_vtt_1k_a
from openvse.datasets.msvd import open_msvd
from openvse.datasets.openmoji import open_openmoji
from openvse.datasets.precomputed import detect_precomputed, open_precomputed
from openvse.datasets.question_folder import holds_questions
from openvse.datasets.question_sets import QUESTION_SETS, detect_questions
from openvse.datasets.spec import parse_spec
from openvse.datasets.tgif import open_mrw, open_tgif
from openvse.datasets.vatex import open_vatex
from openvse.errors import DataError
from openvse.media.videos import find_clips
from openvse.registry import Registry

DATASETS: Registry[Corpus] = Registry(
    "data set",
    {
        "coco": open_coco,
        "csv": open_csv,
        "flickr30k": open_flickr30k,
        "flickr8k": open_flickr8k,
        "folder": open_folder,
        "mrw": open_mrw,
        "msr_vtt": open_msr_vtt,
        "msr_vtt_1k_a": open_msr_vtt_1k_a,
        "msvd": open_msvd,
        "openmoji": open_openmoji,
        "precomputed": open_precomputed,
        "tgif": open_tgif,
        "vatex": open_vatex,
    },
)
"""Loaders by name: ``(root: Path, *, strict: bool, require_images: bool) -> Corpus``."""

Loader: TypeAlias = Callable[..., Corpus | QuestionSet]

_EXPECTED = (
    'expected metadata.jsonl with lines {"file_name": "a.jpg", "captions": ["a sentence"]}, metadata.csv, '
    "a .csv or .tsv file, the files of Flickr or COCO, or train_ims.npy with train_caps.txt"
)


def open_corpus(spec: str | Path, *, strict: bool = False, require_images: bool = True) -> Corpus:
    """Open a data set.

    Args:
        spec: ``NAME:ROOT``, for instance ``flickr8k:/data/f8k``, or a path whose kind is found out: a folder
            with ``metadata.jsonl`` or ``metadata.csv``, a ``.csv`` or ``.tsv`` file, or a folder with the files of
            Flickr, COCO or the precomputed layout. A question set (see ``open_questions``) opens as its pictures with
            the questions as their captions, so that features of them can be extracted and their copy checked.
        strict: raise at captions without a picture, pictures without a caption and empty captions, which are
            otherwise skipped and counted in ``Corpus.problems``.
        require_images: False when precomputed features stand in for the pictures.

    Raises:
        DataError: when nothing is there, the kind cannot be found out, or the data are not usable.
        RecipeError: for an unknown data set name.
    """
    name, root = parse_spec(spec, {*DATASETS, *QUESTION_SETS})
    if not root.exists() and name != "openmoji":
        raise DataError(f"{root}: there is no such file or folder; check the path")
    opened = find_loader(name or _detect(root))(root, strict=strict, require_images=require_images)
    return opened.as_corpus() if isinstance(opened, QuestionSet) else opened


def find_loader(name: str) -> Loader:
    """Return the loader of a data set or question set; raise RecipeError naming both kinds for another word."""
    loaders: dict[str, Loader] = {known: DATASETS.get(known) for known in DATASETS}
    loaders |= {known: QUESTION_SETS.get(known) for known in QUESTION_SETS}
    return Registry(DATASETS.kind, loaders).get(name)


def _detect(root: Path) -> str:
    """Return the name of the loader that fits a path."""
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
    questions = detect_questions(root)
    if questions:
        return questions
    flickr = detect_flickr(root)
    if flickr:
        return flickr.name
    pictures = len(find_clips(root))
    raise DataError(f"{root}: {pictures or 'no'} picture(s) and no captions there ({_EXPECTED})")
