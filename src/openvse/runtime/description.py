"""The description of an exported model, ``export.json``, which lists the inputs and outputs of its files.

An export is a folder with ``export.json``, one program for each side, the files of the tokenizer, and the curve from
score to probability (``calibration.json``) if the model has one. All of this can be read without PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from openvse.errors import DiskError, ModelError
from openvse.files import read_json, settle
from openvse.runtime.arrays import Kind

EXPORT = "export.json"
FORMAT, VERSION = "openvse-export", 1
ExportPrecision: TypeAlias = Literal["float32", "int8"]


CLIPS = ("clips",)
"""The inputs of images where the model also reads clips, so that they are not exported."""


@dataclass(frozen=True)
class Side:
    """The program of images or of texts. Its file is "" where it was not exported.

    The inputs are ``pixels`` or ``CLIPS``, ``features`` and ``mask``, or ``tokens`` and ``mask``. ``longest`` is the
    largest set of features or tokens, ``width`` the width of stored features. ``runtime.reading`` explains ``reading``.
    """

    file: str
    inputs: tuple[str, ...]
    longest: int | None
    width: int | None
    reading: Mapping[str, Any] | None


@dataclass(frozen=True)
class Description:
    """The content of an export's description.

    Attributes:
        fingerprint: the name of the model in an index: the model's fingerprint, followed by ``-int8`` if the weights
            were rounded to it, because the embeddings differ.
        of_model: the fingerprint of the model that was exported.
        num_embeddings: K, the number of embeddings of an image and of a text. 0 for a side that was not exported.
        score: how two embeddings are compared. The score of two items is the score of their best pair.
        checked: the comparison when the export was made: the largest difference of a number of an embedding, by side.
    """

    precision: ExportPrecision
    fingerprint: str
    of_model: str
    num_embeddings: tuple[int, int]
    dim: int
    score: Kind
    image: Side
    text: Side
    checked: Mapping[str, Any]
    openvse: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the description as indented JSON."""
        return json.dumps({"kind": FORMAT, "version": VERSION, **asdict(self)}, indent=2, default=str) + "\n"


def is_export(folder: str | Path) -> bool:
    """Return whether a folder holds an exported model."""
    try:
        return settle(folder, EXPORT) is not None
    except DiskError:
        raise
    except OSError:  # a hub id may be longer than any name
        return False


def read_description(folder: str | Path) -> Description:
    """Read the description of an export. Raise ModelError if it is missing, damaged, or from a newer openvse."""
    path = Path(folder, EXPORT)
    if not is_export(folder):
        raise ModelError(f"{folder} is not an exported model: make one with 'openvse export MODEL {folder}'")
    try:
        fields = read_json(path)
        kind = fields.pop("kind"), fields.pop("version")
        if kind == (FORMAT, VERSION):
            sides = [fields.pop(side) for side in ("image", "text")]
            image, text = (Side(**{**each, "inputs": tuple(each["inputs"])}) for each in sides)
            fields["num_embeddings"] = tuple(fields["num_embeddings"])
            return Description(image=image, text=text, **fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged ({error}): export the model again") from error
    raise ModelError(f"{path} has format {kind[0]} {kind[1]}, not {FORMAT} {VERSION}: update openvse, or export again")
