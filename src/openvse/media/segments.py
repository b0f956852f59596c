"""Segments of clips: a part of a video, and the cut of a video into parts of one length."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"(?P<file>.*)#t=(?P<start>\d+(?:\.\d{1,3})?),(?P<end>\d+(?:\.\d{1,3})?)", re.DOTALL)


@dataclass(frozen=True)
class ClipSegment:
    """A part of a video.

    Attributes:
        start: in seconds from the first frame.
        end: in seconds. Frames that appear then belong to the next segment.
    """

    path: Path
    start: float
    end: float


def cut_clip(seconds: float, length: float) -> list[tuple[float, float]]:
    """Return the segments of a clip as start and end in seconds, to the millisecond.

    All segments but the last have the same length. The last one has between half of it and half as much again, so that
    no segment is a few frames long. A shorter clip is one segment.
    """
    count = max(1, math.floor(seconds / length + 0.5))
    edges = [round(number * length, 3) for number in range(count)]
    return list(zip(edges, [*edges[1:], max(round(seconds, 3), edges[-1] + 0.001)], strict=True))


def segment_name(file: str, start: float, end: float) -> str:
    """Return the name of a segment, as a media fragment of the W3C."""
    return f"{file}#t={_short(start)},{_short(end)}"


def file_of(name: str) -> str:
    """Return the file that a name of a segment begins with, or any other name unchanged."""
    match = _NAME.fullmatch(name)
    return name if match is None else match["file"]


def span_of(name: str) -> tuple[float, float] | None:
    """Return start and end of a segment by its name, or None for the name of a whole file."""
    match = _NAME.fullmatch(name)
    return None if match is None else (float(match["start"]), float(match["end"]))


def clock(seconds: float) -> str:
    """Return a time as players show it."""
    whole, rest = divmod(round(seconds, 1), 60)
    hours, minutes = divmod(int(whole), 60)
    second = f"{rest:04.1f}".removesuffix(".0")
    return f"{hours}:{minutes:02}:{second}" if hours else f"{minutes}:{second}"


def _short(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
