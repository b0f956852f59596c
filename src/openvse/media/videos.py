"""Reading clips safely: a video or animation becomes a few upright RGB frames or raises BadVideoError."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import SEEK_END, BufferedIOBase, BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from openvse.errors import BadImageError, BadVideoError, OpenVSEError, importing
from openvse.media.images import ImageLike, alone_with, pixel_limit, read_image, reason_of, too_large
from openvse.media.listing import PackedFile
from openvse.media.names import escaped, format_of, is_video_name
from openvse.media.segments import ClipSegment

ClipSource: TypeAlias = ImageLike | ClipSegment
"""An ``ImageLike``, the path or bytes of a video, a part of one, or ``uint8 [T, H, W, 3]`` (frames at its rate)."""

SamplingMode = Literal["run", "even"]

# FFmpeg reads playlists and scripts that refer to other files and addresses, so only video containers are opened.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,ogg,asf,h264,hevc,m4v"
_ANIMATIONS = ("GIF", "WEBP")
_WHOLE = 50  # images of the largest size take as long as an animation may
_SEARCHED = ("mpeg", "mpegts")  # containers without an index of their frames
_TRUNCATED = "it is truncated: get the whole file again"
_FIRST_BOXES = b"ftyp moov free skip wide mdat pnot styp sidx moof uuid".split()
_SAMPLES = re.compile(rb"stsz.{8}(.{4})|trun.{4}(.{4})", re.DOTALL)  # the numbers of samples
# Browsers show a frame of 10 ms or less for 100 ms, as authors have come to expect.
_HASTY, _USUAL = 0.01, 0.1
_NOW = 1e-6  # seconds by which a frame may be late and still count as shown


@dataclass(frozen=True)
class FrameSampling:
    """The choice of frames of a clip. No frame is chosen twice, so a short clip yields fewer.

    ``run`` (PVSE, section 3.5): the frames shown at ``fps`` instants per second. If these are more than ``num_frames``,
    a run of consecutive ones in training and evenly spread ones otherwise. ``even``: the frames in the middle of
    ``num_frames`` equal parts of the clip, also in training.

    Attributes:
        num_frames: the largest number of frames of a clip.
        fps: the instants per second of ``run``.
    """

    mode: SamplingMode = "run"
    num_frames: int = 8
    fps: float = 8.0

    def choose(self, starts: Float[np.ndarray, "T"], end: float, place: float | None = None) -> Int[np.ndarray, "N"]:
        """Return the positions of frames, by the seconds at which they appear, and the last one disappears.

        ``place`` is the start of the run in training, as a share in [0, 1) of the possible places. None spreads the
        frames evenly.
        """
        if self.mode == "even":
            parts = (np.arange(self.num_frames) + 0.5) / self.num_frames
            return _shown(starts, starts[0] + parts * (end - starts[0]))
        # The first frame is always seen; an instant at the very end is not.
        count = max(1, int(np.ceil((end - starts[0]) * self.fps - _NOW)))
        seen = _shown(starts, starts[0] + np.arange(count) / self.fps)
        if len(seen) <= self.num_frames:
            return seen
        if place is None:
            chosen = evenly_spread(len(seen), self.num_frames)
        else:
            chosen = np.arange(self.num_frames) + int(place * (len(seen) - self.num_frames + 1))
        return np.asarray(seen[chosen])


def evenly_spread(length: int, count: int) -> Int[np.ndarray, "N"]:
    """Return the middle positions of ``count`` equal parts of ``length`` >= ``count`` elements."""
    middles: Int[np.ndarray, "N"] = (2 * np.arange(count) + 1) * length // (2 * count)
    return middles


def frames_of(
    source: ClipSource,
    sampling: FrameSampling | None = None,
    *,
    place: float | None = None,
    shorter_side: int | None = None,
) -> Iterator[Image.Image]:
    """Decode the chosen frames of a clip to upright RGB one by one, and no others if the file allows it.

    Pillow decodes animated GIF and WebP, so that their frames do not depend on installed packages. Other images are
    clips of one frame. Everything else is a video and needs PyAV (extra ``video``).

    Args:
        sampling: the choice of frames. Default: as in PVSE.
        shorter_side: see ``read_image``, which reads clips of one frame.

    Yields:
        Images of mode RGB, one or more, in order of time. All may take much memory: 100 MB for a frame of 8K.

    Raises:
        BadVideoError: the clip cannot be used. The message has the path and the reason.
        OpenVSEError: PyAV is needed and not installed.
    """
    chosen = sampling or FrameSampling()

    def choose(starts: Float[np.ndarray, "T"], end: float) -> list[int]:
        positions: list[int] = chosen.choose(starts, end, place).tolist()
        return positions

    part = source if isinstance(source, ClipSegment) else None
    given: ImageLike = source.path if isinstance(source, ClipSegment) else source
    pick: Chooser = choose if part is None else _within(choose, part)
    with _explained(given):
        if isinstance(given, PackedFile):
            given = given.read_bytes()
        if isinstance(given, np.ndarray) and given.ndim == 4:
            if not len(given):
                raise BadVideoError("there are no frames in the array")
            starts = np.arange(len(given)) / chosen.fps
            yield from (read_image(given[n]) for n in pick(starts, len(given) / chosen.fps))
        elif (kind := _image_kind(given)) in _ANIMATIONS:
            yield from _animation_frames(given, pick)
        elif kind:
            yield read_image(given, shorter_side=shorter_side)
        else:
            yield from _video_frames(given, pick, None if part is None else _table_of(part.path))


@contextmanager
def _explained(source: ImageLike) -> Iterator[None]:
    """Raise BadVideoError, with the name of the source, for the errors of decoders."""
    path = Path(source) if isinstance(source, str | Path) else None
    label = escaped(source if isinstance(source, PackedFile) else path or "a clip")
    try:
        yield
    except BadImageError as error:  # it may name the source already
        raise BadVideoError(f"{label}: {str(error).removeprefix(f'{label}: ')}") from None
    except OpenVSEError as error:
        if path is None or is_video(path):
            raise
        raise BadVideoError(f"{label}: it is not an image we read: {error}") from None
    except Exception as error:  # damaged files make decoders raise almost any error
        raise BadVideoError(f"{label}: {reason_of(error)}") from error


def read_frames(
    source: ClipSource, sampling: FrameSampling | None = None, *, place: float | None = None
) -> list[Image.Image]:
    """Return the frames of ``frames_of`` as a list."""
    return list(frames_of(source, sampling, place=place))


def clip_seconds(path: Path) -> float:
    """Return the length of a video or animation in seconds, 0 for an image. It raises the errors of ``frames_of``."""
    with _explained(path):
        if (kind := _image_kind(path)) and kind not in _ANIMATIONS:
            return 0.0
        starts, end = frame_starts(path.read_bytes()) if kind else _table_of(path).seconds()
        return float(end - starts[0])


def read_poster(source: ClipSource, *, shorter_side: int | None = None) -> Image.Image:
    """Return an image that represents a clip: its middle frame, or the image itself."""
    return next(frames_of(source, FrameSampling("even", num_frames=1), shorter_side=shorter_side))


def is_video(path: str | Path) -> bool:
    """Return whether a name belongs to a video file. Animations are images."""
    return is_video_name(Path(path).name)


def _shown(starts: Float[np.ndarray, "T"], instants: Float[np.ndarray, "N"]) -> Int[np.ndarray, "M"]:
    """Return the frames that are shown at some instants, each once."""
    positions = np.searchsorted(starts, instants + _NOW, side="right") - 1
    return np.unique(positions.clip(min=0))


Chooser: TypeAlias = Callable[[Float[np.ndarray, "T"], float], list[int]]


def _within(choose: Chooser, segment: ClipSegment) -> Chooser:
    """Return a function that chooses among the frames of a segment alone."""

    def chosen(starts: Float[np.ndarray, "T"], end: float) -> list[int]:
        times = starts - starts[0]
        first = max(0, int(np.searchsorted(times, segment.start + _NOW, side="right")) - 1)
        last = max(first + 1, int(np.searchsorted(times, segment.end - _NOW, side="left")))
        shown = np.maximum(times[first:last], segment.start)
        return [first + place for place in choose(shown, min(segment.end, end - starts[0]))]

    return chosen


def _image_kind(source: ImageLike) -> str:
    """Return Pillow's name of an image's format, or "" if the source is not an image."""
    match source:
        case Image.Image():
            return str(source.format or "decoded")
        case np.ndarray():
            return "decoded"
        case PackedFile():
            return _image_kind(source.read_bytes())
        case bytes():
            file: Any = BytesIO(source)
            size = len(source)
        case _:
            if (known := format_of(Path(source).name)) and known.opens and known.is_read:
                return known.title  # which Pillow does not open by itself
            file, size = source, Path(source).stat().st_size
    if not size:
        raise BadVideoError("the file is empty")
    with suppress(Exception), Image.open(file) as image:  # the video reader gives a better reason
        return str(image.format)
    return ""


def _animation_frames(source: Any, choose: Chooser) -> Iterator[Image.Image]:
    """Decode an animation up to the last wanted frame, since each builds on the earlier ones."""
    if isinstance(source, Image.Image):
        with alone_with(source):
            frames = list(_sought(source, choose(*opened_starts(source))))
        yield from frames
        return
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    wanted = choose(*frame_starts(content))
    with Image.open(BytesIO(content)) as image:
        _check_size(*image.size)
        if math.prod(image.size) * wanted[-1] > _WHOLE * pixel_limit():
            raise BadVideoError(
                f"{wanted[-1] + 1:,} frames of {image.width} x {image.height} pixels would be decoded: save it as MP4"
            )
        yield from _sought(image, wanted)


def _check_size(width: int, height: int) -> None:
    if width * height > pixel_limit():
        raise too_large((width, height), pixel_limit())


def _sought(image: Image.Image, wanted: Sequence[int]) -> Iterator[Image.Image]:
    for position in wanted:
        image.seek(position)
        yield read_image(image)


def _video_frames(source: Any, choose: Chooser, known: _FrameTable | None) -> Iterator[Image.Image]:
    with opened_video(BytesIO(source) if isinstance(source, bytes) else str(source)) as container:
        stream = _stream_of(container)
        _check_size(stream.width, stream.height)
        stream.codec_context.thread_count = 1  # callers decode many clips in parallel
        table = known or _FrameTable.read(container, stream)
        for frame in _decoded(container, stream, [int(table.times[n]) for n in choose(*table.seconds())], table):
            _check_size(frame.width, frame.height)  # a stream may change its size
            yield _upright(frame)


def _stream_of(container: Any) -> Any:
    if not container.streams.video:
        raise BadVideoError("it has no video stream")
    return container.streams.video[0]


def opened_video(file: BytesIO | str) -> Any:
    """Open a video with PyAV, and nothing that refers to other files. A damaged one raises almost any error."""
    with importing("videos need PyAV", "video"):
        import av
    with BytesIO(file.getvalue()) if isinstance(file, BytesIO) else Path(file).open("rb") as content:
        _check_samples(content)
    options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "file", "export_xmp": "1"}
    return av.open(file, options=options, metadata_errors="replace")


def _check_samples(file: BufferedIOBase) -> None:
    """Raise BadVideoError if an MP4 claims more samples than it has bytes, since FFmpeg makes room for each of them.

    Boxes follow ISO/IEC 14496-12. ``stsz`` and ``trun`` have the number of samples, and one of them may mean any
    number.
    """
    whole, at, claimed = file.seek(0, SEEK_END), 0, 0
    while at + 8 <= whole:
        file.seek(at)
        head = file.read(16)
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        size = int.from_bytes(head[8:], "big") if size == 1 else size or whole - at
        if not at and kind not in _FIRST_BOXES:
            return
        if kind in (b"moov", b"moof"):
            file.seek(at)
            for each in _SAMPLES.finditer(file.read(min(size, whole - at))):
                claimed += int.from_bytes(each[1] or each[2], "big")
        if claimed > whole:
            raise BadVideoError(f"it claims {claimed:,} samples in {whole:,} bytes: get the whole file again")
        at += max(8, size)


def _table_of(path: Path) -> _FrameTable:
    """Return the times of a file's frames, which all its segments share."""
    status = path.stat()
    return _kept_table(str(path), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _kept_table(path: str, modified_ns: int, size: int) -> _FrameTable:
    with opened_video(path) as container:
        return _FrameTable.read(container, _stream_of(container))


@dataclass(frozen=True)
class _FrameTable:
    """The times at which the frames of a video appear, in units of the stream.

    They are found without decoding, unless frames of a file have no time. Then all are counted. ``keys`` are the sorted
    times when a frame with which decoding can begin appears and is decoded. ``sizes`` are the bytes of the frame of a
    time, in a container that is searched.
    """

    times: list[int]
    keys: list[tuple[int, int]]
    last: int
    unit: float
    counted: bool
    sizes: dict[int, int]

    @classmethod
    def read(cls, container: Any, stream: Any) -> _FrameTable:
        # An mp4 says where each frame is; frames beyond the end of the file are missing.
        if any(entry.pos + entry.size > container.size for entry in stream.index_entries):
            raise BadVideoError(_TRUNCATED)
        times, keys, sizes, last, undated = [], [], {}, 0, 0
        kind = container.format.name
        for packet in container.demux(stream):
            time = packet.pts
            undated += bool(packet.size and time is None)
            if packet.size and time is not None:
                if packet.is_keyframe:
                    keys.append((time, time if packet.dts is None else packet.dts))
                if kind in _SEARCHED:
                    sizes[time] = packet.size
                if not packet.is_discard:  # cut off when the video was edited
                    times.append(time)
                    last = packet.duration or last
        if not times:
            raise BadVideoError("it has no frames")
        # AVI keeps the order of decoding alone, which some codecs' packets have as their times.
        counted = kind == "avi" and times == sorted(times)
        is_same = kind == "mpeg" and len({*times}) < len(times)  # as of frames that one packet began
        times, keys = sorted(times), sorted(keys) or [(min(times), min(times))]
        if is_same or (undated and kind != "mpegts"):  # where the second fields of frames have no times
            counted = True
            keys = keys[:1]
            container.seek(keys[0][1], stream=stream)
            count = sum(1 for _ in container.decode(stream))
            times = [keys[0][0] + number * max(1, last) for number in range(count)]
        table = cls(times, keys, last, float(stream.time_base), counted, sizes)
        starts, end = table.seconds()
        if end - min(0.0, starts[0]) < 0.9 * _announced_seconds(stream) - 0.5:
            raise BadVideoError(_TRUNCATED)
        return table

    def seconds(self) -> tuple[Float[np.ndarray, "T"], float]:
        """Return the times at which frames appear, and the time at which the last one disappears, in seconds."""
        starts = np.asarray(self.times, dtype=np.float64) * self.unit
        gap = (starts[-1] - starts[0]) / max(1, len(starts) - 1)
        return starts, float(starts[-1] + (self.last * self.unit or gap))


def _announced_seconds(stream: Any) -> float:
    """Return the length of a Matroska stream from its tag, or 0 if there is none."""
    match = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    if match is None:
        return 0.0
    hours, minutes, seconds = map(float, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def _decoded(container: Any, stream: Any, wanted: Sequence[int], table: _FrameTable) -> Iterator[Any]:
    """Yield the frames that appear at the wanted times, jumping to a key frame if there is one in between."""
    frames: Iterator[tuple[float, Any]] = iter(())
    now, frame = -math.inf, None
    for time in wanted:
        place = bisect_right(table.keys, (time, math.inf)) - 1
        if frame is None or (place >= 0 and table.keys[place][0] > now):
            frames, now = _decoding(container, stream, time, table), -math.inf
        while now < time:
            now, frame = next(frames, (math.inf, None))
        if frame is None:
            raise BadVideoError("it ends before its last frame")
        yield frame


def _decoding(container: Any, stream: Any, time: int, table: _FrameTable) -> Iterator[tuple[float, Any]]:
    """Yield the frames, with their times, from one that appears at a time or before it.

    Without an index, a file is searched for a time of decoding, and may be read from a later place. The first frame
    shows it. Then a place 1, 3, 7 ... key frames earlier is tried, at last the first of all.
    """
    place = max(0, bisect_right(table.keys, (time, math.inf)) - 1)
    earlier = [max(0, place + 1 - 2**number) for number in range(place.bit_length() + 1)]
    targets = [table.keys[at][1] for at in earlier]
    if container.format.name not in _SEARCHED:
        targets = [table.keys[place][0], *targets]
    for target in targets:
        container.seek(target, stream=stream)
        frames = _timed(container, stream, table)
        if (first := list(islice(frames, 1))) and first[0][0] <= time:
            break
    return chain(first, frames)


def _timed(container: Any, stream: Any, table: _FrameTable) -> Iterator[tuple[float, Any]]:
    """Yield the frames from where a file is read, with the times at which they appear."""
    if table.counted:
        frames = container.decode(stream)
        first = list(islice(frames, 1))
        place = bisect_left(table.times, first[0].pts) if first and first[0].pts is not None else 0
        yield from zip(table.times[place:], chain(first, frames), strict=False)
        return
    for packet in container.demux(stream):
        # A search may end within a frame, whose rest then has the time of the next one.
        if table.sizes and table.sizes.get(packet.pts) != packet.size:
            packet.pts = None
        yield from ((frame.pts, frame) for frame in packet.decode() if frame.pts is not None)


def _upright(frame: Any) -> Image.Image:
    """Turn a decoded frame into upright RGB, by the rotation that the camera recorded (counter-clockwise degrees)."""
    image: Image.Image = frame.to_image()
    turn = getattr(Image.Transpose, f"ROTATE_{round(getattr(frame, 'rotation', 0)) % 360}", None)
    return image if turn is None else image.transpose(turn)


def frame_starts(content: bytes) -> tuple[Float[np.ndarray, "T"], float]:
    """Return the seconds at which each frame appears, and at which the last one disappears.

    Sources: the GIF89a specification (graphic control extensions hold hundredths of a second) and the WebP
    container specification (``ANMF`` chunks hold milliseconds). An image without animation is one frame.
    """
    read = _gif_seconds if content[:3] == b"GIF" else _webp_seconds
    try:
        return _starts(list(read(content)))
    except IndexError:
        raise BadVideoError(_TRUNCATED) from None


def opened_starts(image: Image.Image) -> tuple[Float[np.ndarray, "T"], float]:
    """Return the same for an animation that is already open in Pillow. It decodes every frame once."""
    seconds = []
    for position in range(getattr(image, "n_frames", 1)):
        image.seek(position)
        image.load()
        seconds.append(float(image.info.get("duration", 0)) / 1000)
    return _starts(seconds)


def _starts(seconds: list[float]) -> tuple[Float[np.ndarray, "T"], float]:
    if not seconds:
        raise BadVideoError("it has no frames")
    lengths = np.array([_USUAL if length <= _HASTY else length for length in seconds])
    ends = lengths.cumsum()
    return ends - lengths, float(ends[-1])


def _gif_seconds(content: bytes) -> Iterator[float]:
    """Yield the duration of each frame of a GIF in seconds."""
    at = 13 + _colours(content[10])
    delay = 0.0
    while at < len(content) and content[at] != 0x3B:  # many files lack the trailer
        if content[at] == 0x21:
            if content[at + 1] == 0xF9:
                delay = int.from_bytes(content[at + 4 : at + 6], "little") / 100
            at = _skip_blocks(content, at + 2)
        elif content[at] == 0x2C:
            at = _skip_blocks(content, at + 11 + _colours(content[at + 9]))
            yield delay
            delay = 0.0
        else:
            raise BadVideoError(f"it is damaged (no GIF block begins at byte {at})")


def _colours(flags: int) -> int:
    """Return the size in bytes of the colour table that follows such flags."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_blocks(content: bytes, at: int) -> int:
    """Return the position after a run of sub-blocks, each preceded by its length. IndexError beyond the end."""
    while size := content[at]:
        at += size + 1
    return at + 1


def _webp_seconds(content: bytes) -> Iterator[float]:
    """Yield the duration of each frame of a WebP in seconds."""
    if len(content) < 8 + int.from_bytes(content[4:8], "little"):
        raise BadVideoError(_TRUNCATED)
    at = 12
    animated = False
    while at + 8 <= len(content):
        if content[at : at + 4] == b"ANMF":
            animated = True
            yield int.from_bytes(content[at + 20 : at + 23], "little") / 1000
        size = int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    if not animated:
        yield 0.0
