"""Reading the text in images: lines, each with its confidence and its place. A reader is a package of its own."""

from __future__ import annotations

import json
import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from openvse.errors import DataError, install

if TYPE_CHECKING:
    from PIL import Image

LEAST_CONFIDENCE = 0.7
"""The lowest confidence of a line that is kept (``docs/ranking.md``)."""

MOST_LINES = 5000
"""The largest number of lines of a file, and of characters of a line, that are kept."""

READ_PX = 1000
"""The shorter side to which an image is decoded for reading. A JPEG keeps at least twice as many pixels."""

WHOLE_PX = 2500
"""The longer side above which a picture is also read in pieces. RapidOCR makes a whole picture 2,000 pixels long."""

PIECE_PX, OVERLAP_PX = 1100, 160
"""The longest side of a piece, in which small signs are found, and the pixels that neighbouring pieces share."""

MOST_PIECES, MOST_OF_FILE = 100, 400
"""The largest numbers of pieces of a picture, of which one of more is read smaller, and of the pages of a file."""

MOST_LENGTH = 10_000
"""The largest sum of the lengths of the lines that are read in up to 8 pieces, in units of their heights."""

_LEAST_PX, _ROW_PX = 30, 10
_THICKER = 1.4  # parts of one line, together, are at most so many times as thick as one of them
_PITCH = 0.5, 3.0  # heights of a line to the next one of the same column, at least and at most
_BROKEN = re.compile("[^\\W\\d_]+[-\u2010\u00ad]$")

_UNREAD = re.compile("[\u0386-\u0390\u03aa-\u03b0\u03c2\u03ca-\u03ce\u1e00-\u1e9f\u1ea1-\u1ed2\u1ed4-\u1fff]")


def as_read(word: str) -> str:
    """Return a word without the Latin and Greek letters that RapidOCR's model leaves out.

    Examples:
        >>> as_read("Tiếng Việt"), as_read("Größe")
        ('Ting Vit', 'Größe')
    """
    return _UNREAD.sub("", unicodedata.normalize("NFC", word))


@dataclass(frozen=True)
class TextLine:
    """A line of text in an image, and the reader's confidence, from 0 to 1.

    The box has four corners, clockwise from the beginning of the text, each as shares of the width and height.
    ``page`` counts from 1, and is None in a file of one page.
    """

    text: str
    confidence: float
    box: tuple[tuple[float, float], ...]
    page: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line in its JSON form."""
        return asdict(self) | {"box": [list(each) for each in self.box]}


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

    It reads lines in any direction. A picture whose longer side is above ``WHOLE_PX`` is searched for lines as a whole
    and in overlapping pieces. A line in several pieces is joined, and read once. ``docs/ranking.md`` says which letters
    the model knows. It leaves out the others without a sign.

    Attributes:
        note: why the picture before was read in part only, or "".
    """

    name = "rapidocr"

    def __init__(self, threads: int | None = None) -> None:
        if find_spec("rapidocr") is None:
            raise DataError(f"reading text needs the package rapidocr: {install('ocr')}")
        self._threads = threads
        self.note = ""

    @cached_property
    def _engine(self) -> Any:  # it takes a second to open, and most updates read nothing
        from rapidocr import RapidOCR

        logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)  # an image without text is no reason to warn
        settings: dict[str, Any] = {"Global.log_level": "critical", "Global.text_score": LEAST_CONFIDENCE}
        settings["EngineConfig.onnxruntime.intra_op_num_threads"] = self._threads or -1
        return RapidOCR(params=settings)

    def read(self, image: Image.Image) -> list[TextLine]:
        """Return the lines of an RGB image, from the top down."""
        self.note, (width, height) = "", image.size
        while len(pieces := pieces_of(width, height)) > MOST_PIECES:
            width, height = max(1, width * 9 // 10), max(1, height * 9 // 10)
        if image.size != (width, height):
            self.note = f"{image.width} x {image.height} pixels are read as {width} x {height}"
            image = image.resize((width, height))
        pixels = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
        boxes = self._boxes(pixels)
        if len(pieces) > 1:
            corners = [np.array(piece[:2], np.float32) for piece in pieces]
            parts = (pixels[top:bottom, left:right] for left, top, right, bottom in pieces)
            found = (self._boxes(part, is_piece=True) for part in parts)
            lines = _joined(boxes + corner for boxes, corner in zip(found, corners, strict=True))
            large = [box for box in boxes if 2 * _shared(lines, box).sum() < _shared(box[None], box)[0]]
            down = sorted([*lines, *large], key=lambda box: (round(box[0, 1] / _ROW_PX), box[0, 0]))
            boxes = np.array(down, np.float32).reshape(-1, 4, 2)
        lengths = np.cumsum([max(sides := _sides(box)) / max(1.0, min(sides)) for box in boxes])
        if len(boxes) > (count := int(np.searchsorted(lengths, MOST_LENGTH * max(8, len(pieces)) // 8, "right"))):
            self.note = f"only {count:,} of its {len(boxes):,} lines are read, as they are long"
        return self._lines(pixels, boxes[:count])

    def _boxes(self, pixels: np.ndarray, *, is_piece: bool = False) -> np.ndarray:
        """Return the corners of the lines in a picture or piece, from the top down: float32 [lines, 4, 2].

        RapidOCR enlarges a picture until its shorter side has 736 pixels, so thin ones get a margin first.
        """
        height, width = pixels.shape[:2]
        least = max(_LEAST_PX, width // 2 * is_piece), max(_LEAST_PX, height // (2 if is_piece else 8))
        missing = max(0, least[0] - height), max(0, least[1] - width)
        padded = np.pad(pixels, ((0, missing[0]), (0, missing[1]), (0, 0)))
        found = self._engine(padded, use_det=True, use_cls=False, use_rec=False).boxes
        return np.zeros((0, 4, 2), np.float32) if found is None else found

    def _lines(self, pixels: np.ndarray, boxes: np.ndarray) -> list[TextLine]:
        """Return the lines within boxes that can be read."""
        if not len(boxes):
            return []
        crops, _ = self._engine.cls_and_rotate(self._engine.crop_text_regions(pixels, boxes))
        found, size = self._engine.recognize_txt(crops), (pixels.shape[1], pixels.shape[0])
        places = (boxes.astype(float) / size).clip(0, 1).round(4).tolist()
        return [
            TextLine(text, round(float(score), 3), tuple((x, y) for x, y in box))
            for text, score, box in zip(found.txts, found.scores, places, strict=True)
            if text.strip() and score >= LEAST_CONFIDENCE
        ]


def pieces_of(width: int, height: int) -> list[tuple[int, int, int, int]]:
    """Return the pieces that cover a picture, as left, top, right and bottom. Neighbours overlap.

    Examples:
        >>> pieces_of(2000, 1500), pieces_of(1080, 2980)
        ([(0, 0, 2000, 1500)], [(0, 0, 1080, 1100), (0, 940, 1080, 2040), (0, 1880, 1080, 2980)])
    """

    def along(length: int) -> list[tuple[int, int]]:
        count = max(1, math.ceil((length - OVERLAP_PX) / (PIECE_PX - OVERLAP_PX)))
        size = math.ceil((length + (count - 1) * OVERLAP_PX) / count)
        starts = range(0, count * (size - OVERLAP_PX), size - OVERLAP_PX) if count > 1 else (0,)
        return [(start, min(start + size, length)) for start in starts]

    if max(width, height) <= WHOLE_PX:
        return [(0, 0, width, height)]
    return [(x, y, end_x, end_y) for y, end_y in along(height) for x, end_x in along(width)]


def _joined(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """Return the boxes of all pieces. Parts of a line in several pieces, which overlap there, are one box."""
    import cv2  # comes with rapidocr

    lines = np.zeros((0, 4, 2), np.float32)
    for boxes in pieces:
        new: list[np.ndarray] = []
        for box in boxes:
            whole, parts = box, list[int]()
            for place in np.flatnonzero(_shared(lines, box)):
                both = cv2.boxPoints(cv2.minAreaRect(np.concatenate([whole, lines[place]])))  # clockwise
                if min(_sides(both)) <= _THICKER * max(min(_sides(whole)), min(_sides(lines[place]))):
                    whole = np.roll(both, -int(both.sum(1).argmin()), 0)  # from the upper one on the left
                    parts.append(int(place))
            if parts:
                lines[parts] = np.inf  # an empty rectangle
                lines[parts[0]] = whole
            else:
                new.append(box)
        lines = np.concatenate([lines[np.isfinite(lines[:, 0, 0])], np.array(new, np.float32).reshape(-1, 4, 2)])
    return lines


def _sides(box: np.ndarray) -> tuple[float, float]:
    """Return the lengths of two sides of a box that meet."""
    return float(np.linalg.norm(box[0] - box[1])), float(np.linalg.norm(box[1] - box[2]))


def _shared(boxes: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the areas that the upright rectangles around boxes share with the one around another box."""
    sides = np.minimum(boxes.max(1), other.max(0)) - np.maximum(boxes.min(1), other.min(0))
    return np.asarray(sides.clip(0).prod(1))


def open_reader(reader: str | TextReader, threads: int | None = None) -> TextReader | None:
    """Return a reader, by its name or unchanged, or None for ``none``. Raise DataError if it does not exist."""
    if not isinstance(reader, str):
        return reader
    if reader == "none":
        return None
    if reader != RapidReader.name:
        raise DataError(f"there is no reader {reader!r}: give {RapidReader.name}, none, or a reader of your own")
    return RapidReader(threads)


def stored_lines(lines: Sequence[TextLine]) -> str:
    """Return the lines of sufficient confidence as JSON, cut to the number and length that an index has room for.

    A line of one letter or digit is left out: in photographs, most of these are shapes and no text. Behind a line are
    its page, in a file of several, and both forms of the words that a hyphen breaks at one of its ends.
    """
    kept: list[TextLine] = []
    for each in lines:
        if each.confidence >= LEAST_CONFIDENCE and sum(map(str.isalnum, each.text)) > 1:
            words = each.text[:MOST_LINES].encode("utf-8", "replace").decode().split()
            kept.append(replace(each, text=" ".join(words)))
    broken = _broken_words(kept[:MOST_LINES])
    rows = [[each.text, each.confidence, each.box, each.page, broken.get(at)] for at, each in enumerate(kept)]
    short = [row[: 5 if row[4] else 4 if row[3] else 3] for row in rows[:MOST_LINES]]
    return json.dumps(short, separators=(",", ":"), allow_nan=False)


def lines_in(stored: str) -> list[TextLine]:
    """Return the lines that ``stored_lines`` made."""
    return [
        TextLine(text, sure, tuple((x, y) for x, y in box), *more[:1]) for text, sure, box, *more in json.loads(stored)
    ]


def _broken_words(lines: Sequence[TextLine]) -> dict[int, str]:
    """Return the words that a hyphen breaks at the end of a line, whole and with it, by the places of both lines."""
    words: dict[int, str] = {}
    for place, line in enumerate(lines):
        if not _BROKEN.search(line.text) or len(line.box) != 4:
            continue
        first, (start, right, _, below) = line.text.split()[-1], np.array(line.box, float)
        with suppress(np.linalg.LinAlgError):  # a box without area
            others = [at for at, each in enumerate(lines) if each.page == line.page and len(each.box) == 4]
            corners = np.array([lines[at].box[:2] for at in others], float) - start
            seen = np.linalg.solve(np.stack([right - start, below - start], 1), corners.reshape(-1, 2).T)
            (left, end), down = seen[0].reshape(-1, 2).T, seen[1].reshape(-1, 2)[:, 0]
            fits = (down > _PITCH[0]) & (down < _PITCH[1]) & (left < 0.5) & (end > 0)
            after = others[int(np.where(fits, down, np.inf).argmin())]
            last = lines[after].text.split()[0]
            if fits.any() and last[0].isalpha():
                for at in (place, after):
                    words[at] = f"{words.get(at, '')} {first[:-1]}{last} {first[:-1]}-{last}".strip()
    return words


def shown_lines(lines: Sequence[TextLine]) -> str:
    """Return lines as one, with the page before the first line of each.

    Examples:
        >>> shown_lines([TextLine("Total", 0.9, (), 3), TextLine("12,50", 0.9, (), 3), TextLine("Sum", 0.9, (), 4)])
        'page 3: Total … 12,50 … page 4: Sum'
    """
    before = [None, *(line.page for line in lines)]
    pages = (f"page {line.page}: " * (line.page != last) for line, last in zip(lines, before, strict=False))
    return " … ".join(page + line.text for page, line in zip(pages, lines, strict=True))
