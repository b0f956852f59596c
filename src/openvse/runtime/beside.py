"""The towers beside an index: the parts of its model that a search needs, so that it starts without PyTorch.

    towers-<fingerprint>/                 an export of the model of this fingerprint (see ``runtime.description``), in
                                          which the program of images may be left out
    towers-<fingerprint>/left_out.json    why a program is missing, so that it is not tried at each indexing

The name contains the model's fingerprint, so a search never uses the towers of another model.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openvse.errors import ModelError, OpenVSEError
from openvse.files import read_json
from openvse.runtime.model import OnnxModel, read_description

LEFT_OUT = "left_out.json"
_FOLDERS = "towers-"


@dataclass(frozen=True)
class Towers:
    """The sides (image, text) that an index has beside it, and why others are left out, which may change later."""

    sides: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_new: bool = False


def towers_of(index: Path, fingerprint: str) -> Path:
    """Return the folder of the towers of a model beside an index."""
    return index / f"{_FOLDERS}{fingerprint}"


def remove_other_towers(index: Path, fingerprint: str) -> None:
    """Remove all towers except the towers of the index's own model."""
    for folder in index.glob(f"{_FOLDERS}*"):
        if folder != towers_of(index, fingerprint):
            shutil.rmtree(folder, ignore_errors=True)


def sound_sides(folder: Path) -> set[str]:
    """Return which of ``image`` and ``text`` are in a folder of towers and can be read."""
    try:
        described = read_description(folder)
        sides = {name for name in ("image", "text") if getattr(described, name).file}
        towers = OnnxModel(folder)
        for name in sides:
            towers.open(name)
        return sides if len(towers.tokenizer.tokenize(["a"])) else set()
    except ModelError:
        return set()


def left_out_of(folder: Path, version: str) -> Mapping[str, str]:
    """Return why a side was not written, by its name, or "" for a side that the user does not want.

    Failures of another ``version`` of openvse are not counted.
    """
    try:
        noted = read_json(folder / LEFT_OUT)
        if noted["openvse"] == version:
            return {str(side): str(reason) for side, reason in noted["sides"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OpenVSEError):
        pass  # as if nothing was noted
    return {}
