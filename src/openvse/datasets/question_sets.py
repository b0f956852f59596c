"""From what a user types to questions. Adding a data set takes a file of its own and one line here."""

from __future__ import annotations

from pathlib import Path

from openvse.corpus.questions import QuestionSet
from openvse.datasets.daquar import detect_daquar, open_daquar
from openvse.datasets.question_folder import TABLES, open_question_folder
from openvse.datasets.spec import parse_spec
from openvse.datasets.vqa2 import detect_vqa2, open_vqa2
from openvse.errors import DataError
from openvse.registry import Registry

QUESTION_SETS: Registry[QuestionSet] = Registry(
    "question set",
    {"daquar": open_daquar, "question_folder": open_question_folder, "vqa2": open_vqa2},
)
"""Loaders by name: ``(root: Path, *, strict: bool, require_images: bool) -> QuestionSet``."""


def open_questions(spec: str | Path, *, strict: bool = False, require_images: bool = True) -> QuestionSet:
    """Open questions about pictures.

    Args:
        spec: ``NAME:ROOT``, for instance ``vqa2:/data/vqa``, or a path whose kind is found out: a folder with the
            files of VQA 2.0 or DAQUAR, a folder with ``metadata.jsonl`` or ``metadata.csv``, or such a file.
        strict: raise at the first kind of problem, which is otherwise counted in ``QuestionSet.problems``.
        require_images: False when precomputed features stand in for the pictures.

    Raises:
        DataError: when nothing is there, the kind cannot be found out, or the data are not usable.
        RecipeError: for an unknown name.
    """
    name, root = parse_spec(spec, QUESTION_SETS)
    if not root.exists():
        raise DataError(f"{root}: there is no such file or folder; check the path")
    return QUESTION_SETS.get(name or _detect(root))(root, strict=strict, require_images=require_images)


def detect_questions(root: Path) -> str:
    """Return the name of the published question set whose files a folder holds, or ""."""
    if detect_vqa2(root):
        return "vqa2"
    return "daquar" if detect_daquar(root) else ""


def _detect(root: Path) -> str:
    """Return the name of the loader that fits a path."""
    if root.is_file() and root.suffix.lower() not in TABLES:
        raise DataError(f"{root}: not a file of questions; give one of {', '.join(TABLES)}, or a folder")
    return detect_questions(root) or "question_folder"
