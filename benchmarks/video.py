"""Reading a few frames of a clip against decoding them all, by container and by the distance of key frames.

Run ``python benchmarks/video.py [--seconds N]``. It writes videos and animations of moving noise at 320 x 240 and 25
frames a second to a temporary folder, and reads PVSE's 8 frames of each in one thread:

- decode all: every frame to RGB, then the chosen ones (what a loop over the decoder does);
- in order: decoding stops after the last chosen frame, and only the chosen ones become RGB;
- openvse: jumps to a key frame where one lies between two chosen frames.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import av
import numpy as np
from PIL import Image

from _measure import environment, table
from openvse.media.videos import FrameSampling, frames_of

SIZE, RATE = (320, 240), 25
SAMPLING = FrameSampling("run", num_frames=8, fps=8.0)
CODECS = {
    "mp4, H.264, a key frame a second": ("mp4", "libx264", RATE),
    "mp4, H.264, one key frame": ("mp4", "libx264", 10_000),
    "webm, VP9, a key frame a second": ("webm", "libvpx-vp9", RATE),
    "avi, MPEG-4, a key frame every 12": ("avi", "mpeg4", 12),
}


def scene(count: int) -> list[Image.Image]:
    """Return frames of a window that moves over smooth noise."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).resize(
        (960, 640), Image.Resampling.BICUBIC
    )
    ways = np.linspace((0, 0), (960 - SIZE[0], 640 - SIZE[1]), count).astype(int)
    return [noise.crop((x, y, x + SIZE[0], y + SIZE[1])) for x, y in ways]


def write_video(path: Path, frames: Sequence[Image.Image], codec: str, keys_every: int) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.gop_size = keys_every
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())


def chosen(count: int) -> list[int]:
    return SAMPLING.choose(np.arange(count) / RATE, count / RATE).tolist()


def decode_all(path: Path) -> list[Image.Image]:
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        frames = [frame.to_image() for frame in container.decode(video=0)]
    return [frames[number] for number in chosen(len(frames))]


def decode_in_order(path: Path, count: int) -> list[Image.Image]:
    wanted = chosen(count)
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        found = []
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                found.append(frame.to_image())
            if len(found) == len(wanted):
                break
    return found


def decode_animation(path: Path) -> list[Image.Image]:
    with Image.open(path) as image:
        frames = []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(image.convert("RGB"))
    return [frames[number] for number in chosen(len(frames))]


def read_frames(path: Path) -> list[Image.Image]:
    return list(frames_of(path, SAMPLING))


def median_cpu_times(readers: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median CPU seconds of each: they work in one thread, and what else runs does not count."""
    seconds: list[list[float]] = [[] for _ in readers]
    for turn in range(repeats + 1):
        for reader, times in zip(readers, seconds, strict=True):
            started = time.process_time()
            reader()
            if turn:
                times.append(time.process_time() - started)
    return [statistics.median(times) for times in seconds]


def row(name: str, count: int, readers: Sequence[Callable[[], object] | None], repeats: int) -> list[str]:
    """Time the readers in turns; return clips of each in a second of one core, and the last against the first."""
    there = [reader for reader in readers if reader is not None]
    times = iter(median_cpu_times(there, repeats))
    found = [None if reader is None else next(times) for reader in readers]
    shown = ["" if seconds is None else f"{1 / seconds:.1f}" for seconds in found]
    first, last = found[0] or 1.0, found[-1] or 1.0
    return [name, *shown, f"{8 / last:,.0f}", f"{count / last:,.0f}", f"{first / last:.1f} x"]


def measure(folder: Path, seconds: int, repeats: int) -> list[list[str]]:
    frames = scene(seconds * RATE)
    rows = []
    for name, (suffix, codec, keys_every) in CODECS.items():
        path = folder / f"{keys_every}.{suffix}"
        write_video(path, frames, codec, keys_every)
        readers = [partial(decode_all, path), partial(decode_in_order, path, len(frames)), partial(read_frames, path)]
        rows.append(row(name, len(frames), readers, repeats))
    for suffix in ("gif", "webp"):
        path = folder / f"a.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 // RATE)
        readers = [partial(decode_animation, path), None, partial(read_frames, path)]
        rows.append(row(suffix, len(frames), readers, repeats))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, nargs="+", default=[3, 15], help="length of the clips")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(environment())
    head = ["clip", "decode all", "in order", "openvse", "frames/s", "frames/s of the clip", "openvse / decode all"]
    for seconds in options.seconds:
        print(f"\n{seconds} s, clips in a CPU second (8 frames of each):\n")
        with tempfile.TemporaryDirectory() as folder:
            print(table(head, measure(Path(folder), seconds, options.repeats)))


if __name__ == "__main__":
    main()
