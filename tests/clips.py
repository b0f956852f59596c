"""Clips whose frames tell their number: frame n is grey, 5 n + 20 bright, so that there are 47 of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (48, 32)


def grey(number: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """Return the frame of a number."""
    return Image.new("RGB", size, (5 * number + 20,) * 3)


def number_of(frame: Image.Image) -> int:
    """Return the number of a decoded frame."""
    return round((float(np.asarray(frame).mean()) - 20) / 5)


def numbers(frames: Sequence[Image.Image]) -> list[int]:
    return [number_of(frame) for frame in frames]


def write_animation(path: Path, count: int, duration: int | list[int] = 40) -> Path:
    """Write an animated GIF or WebP, by suffix; ``duration`` is in milliseconds."""
    frames = [grey(number) for number in range(count)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0, lossless=True)
    return path


def write_video(
    path: Path,
    count: int,
    *,
    fps: int = 25,
    codec: str = "libx264",
    keys_every: int = 12,
    front: bool = False,
    times: Sequence[int] | None = None,
) -> Path:
    """Write a video; ``front`` puts an mp4's index before its frames, ``times`` says when frames appear, in 1/fps s."""
    import av

    options = {"movflags": "faststart"} if front else {}
    if times and times[0] < 0:  # what stands before 0 is cut off, as by an editor
        options |= {"use_editlist": "1", "avoid_negative_ts": "disabled"}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.gop_size = keys_every
        if codec == "mpeg4":
            stream.codec_context.qmin = stream.codec_context.qmax = 1  # its greys must stay apart
        for number in range(count):
            frame = av.VideoFrame.from_image(grey(number))
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
