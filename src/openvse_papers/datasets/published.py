"""The published data sets with their facts, and questions about images, by name or path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from openvse.datasets.folder import metadata_files
from openvse.datasets.opening import open_named
from openvse.datasets.registry import DataSet
from openvse.errors import DataError
from openvse_papers.datasets import clips, coco, daquar, flickr, precomputed, question_folder, vqa2
from openvse_papers.vqa.questions import QuestionSet

COCO = DataSet(coco.open_coco, coco.COCO)
DAQUAR = DataSet(daquar.open_daquar, daquar.DAQUAR)
FLICKR30K = DataSet(flickr.FLICKR30K_LAYOUT.open, flickr.FLICKR30K)
FLICKR8K = DataSet(flickr.FLICKR8K_LAYOUT.open, flickr.FLICKR8K)
MRW = DataSet(clips.open_mrw, clips.MRW)
MSR_VTT = DataSet(clips.open_msr_vtt, clips.MSR_VTT)
MSR_VTT_1K_A = DataSet(clips.open_msr_vtt_1k_a, clips.MSR_VTT_1K_A)
MSVD = DataSet(clips.open_msvd, clips.MSVD)
PRECOMPUTED = DataSet(precomputed.open_precomputed, precomputed.PRECOMPUTED)
QUESTION_FOLDER = DataSet(question_folder.open_question_folder, own=True)
TGIF = DataSet(clips.open_tgif, clips.TGIF)
VATEX = DataSet(clips.open_vatex, clips.VATEX)
VQA2 = DataSet(vqa2.open_vqa2, vqa2.VQA2)

_LAYOUTS: Sequence[tuple[str, Callable[[Path], bool]]] = (
    ("precomputed", lambda root: precomputed.find_folder(root) is not None),
    ("coco", coco.detect_coco),
    ("vqa2", vqa2.detect_vqa2),
    ("daquar", daquar.detect_daquar),
    ("flickr8k", flickr.FLICKR8K_LAYOUT.fits),  # files that fit both sets of Flickr are Flickr8k's
    ("flickr30k", flickr.FLICKR30K_LAYOUT.fits),
)


def detect_published(root: Path) -> str:
    """Return the name of the published data set or questions that fit a path, or "". A metadata file comes first."""
    tables = [root] if root.suffix.lower() in question_folder.TABLES else metadata_files(root)[:1]
    if root.is_file() or tables:
        return "question_folder" if any(map(question_folder.holds_questions, tables)) else ""
    return next((name for name, fits in _LAYOUTS if fits(root)), "")


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
    _, opened = open_named(
        source, _detect_questions, require_images=require_images, allow_outside=allow_outside
    )
    if not isinstance(opened, QuestionSet):
        raise DataError(f"{source} holds captions and no questions: give data with questions")
    return opened


def _detect_questions(root: Path) -> str:
    """Return the name of the question set that fits a path."""
    if root.is_file() and root.suffix.lower() not in question_folder.TABLES:
        allowed = ", ".join(question_folder.TABLES)
        raise DataError(f"{root}: not a file of questions: give one of {allowed}, or a folder")
    if not any(map(question_folder.holds_questions, metadata_files(root)[:1])):
        for name, fits in (("vqa2", vqa2.detect_vqa2), ("daquar", daquar.detect_daquar)):
            if fits(root):
                return name
    return "question_folder"
