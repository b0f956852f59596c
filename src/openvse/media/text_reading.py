"""Reading the text in images: lines, each with its confidence and its place. A reader is a package of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from openvse.errors import DataError, install

if TYPE_CHECKING:
    from PIL import Image

LEAST_CONFIDENCE = 0.7
"""The lowest confidence of a line that is kept (``docs/ranking.md``)."""

MOST_LINES = 1000
"""The largest number of lines of an image, and of characters of a line, that are kept."""

READ_PX = 1000
"""The shorter side to which an image is decoded for reading. A JPEG keeps at least twice as many pixels."""


@dataclass(frozen=True)
class TextLine:
    """A line of text in an image, and the reader's confidence, from 0 to 1.

    The box has four corners, clockwise from the beginning of the text, each as shares of the width and height.
    """

    text: str
    confidence: float
    box: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the line in its JSON form."""
        return {"text": self.text, "confidence": self.confidence, "box": [list(each) for each in self.box]}


@runtime_checkable
class TextReader(Protocol):
    """A reader of the text in images. ``name`` identifies its model, so that images are read again after a change."""

    @property
    def name(self) -> str:
        """The name that an index remembers."""

    def read(self, image: Image.Image) -> Sequence[TextLine]:
        """Return the lines of an RGB image, from the top down. Any exception means that this image cannot be read."""


class RapidReader:
    """Reads with the package ``rapidocr``: the small models of PP-OCRv6, which are in it, on ONNX Runtime.

    It reads Latin with its accents, Chinese and Japanese, Greek in part, and neither Cyrillic nor Arabic. It reads
    lines in any direction.
    """

    name = "rapidocr"

    def __init__(self, threads: int | None = None) -> None:
        if find_spec("rapidocr") is None:
            raise DataError(f"reading text needs the package rapidocr: {install('ocr')}")
        self._threads = threads

    @cached_property
    def _engine(self) -> Any:  # it takes a second to open, and most updates read nothing
        from rapidocr import RapidOCR

        logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)  # an image without text is no reason to warn
        settings: dict[str, Any] = {"Global.log_level": "critical", "Global.text_score": LEAST_CONFIDENCE}
        settings["EngineConfig.onnxruntime.intra_op_num_threads"] = self._threads or -1
        return RapidOCR(params=settings)

    def read(self, image: Image.Image) -> list[TextLine]:
        """Return the lines of an RGB image, from the top down."""
        found: Any = self._engine(np.ascontiguousarray(np.asarray(image)[:, :, ::-1]))
        if not found.txts:
            return []
        boxes = (np.asarray(found.boxes, float) / image.size).clip(0, 1).round(4).tolist()
        return [
            TextLine(text, round(float(score), 3), tuple((x, y) for x, y in box))
            for text, score, box in zip(found.txts, found.scores, boxes, strict=True)
        ]


def open_reader(reader: str | TextReader, threads: int | None = None) -> TextReader | None:
    """Return a reader, by its name or unchanged, or None for ``none``. Raise DataError if it does not exist."""
    if not isinstance(reader, str):
        return reader
    if reader == "none":
        return None
    if reader != RapidReader.name:
        raise DataError(
            f"there is no reader {reader!r}: give {RapidReader.name}, none, or a reader of your own"
        )
    return RapidReader(threads)


def stored_lines(lines: Sequence[TextLine]) -> str:
    """Return the lines of sufficient confidence as JSON, cut to the number and length that an index has room for.

    A line of one letter or digit is left out: in photographs, most of these are shapes and no text.
    """
    sure = (
        each for each in lines if each.confidence >= LEAST_CONFIDENCE and sum(map(str.isalnum, each.text)) > 1
    )
    kept = [
        [
            " ".join(each.text[:MOST_LINES].encode("utf-8", "replace").decode().split()),
            each.confidence,
            each.box,
        ]
        for each in islice(sure, MOST_LINES)
    ]
    return json.dumps(kept, separators=(",", ":"), allow_nan=False)


def lines_in(stored: str) -> list[TextLine]:
    """Return the lines that ``stored_lines`` made."""
    return [TextLine(text, sure, tuple((x, y) for x, y in box)) for text, sure, box in json.loads(stored)]
