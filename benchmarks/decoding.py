"""Pictures decoded and made ready for CLIP a second: by threads and by processes, on one core and on all.

python benchmarks/decoding.py [--folder PICTURES] [--pictures 1000] [--repeats 5] [--cores 2]

Threads decode beside a model on a CPU, processes beside one on a GPU, where pixels stay bytes. "as the checkpoint says"
is the preprocessing of ``transformers`` in threads, which came before and gives the same pixels. All ways take turns.
CLIP B/32 has one layer. Without ``--folder``, JPEG files of 500 x 375 are drawn.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _measure import environment, table
from everyday import draw
from gpu import write_clip
from openvse.backbones.pretrained import TransformersVision, pixels_of
from openvse.media.images import read_image
from openvse.media.listing import list_media
from openvse.pipeline import decoded, in_batches

BATCH = 64


def ways_of(backbone: TransformersVision) -> dict[str, tuple[Callable[[Path], Any], str]]:
    """Return how a picture is read in each way, and the device for which it is."""
    side, processor = backbone.shorter_side, backbone.processor
    return {
        "as the checkpoint says, threads": (
            lambda path: pixels_of(processor, read_image(path, shorter_side=side), None),
            "cpu",
        ),
        "for a CPU, threads": (lambda path: backbone.preprocess(read_image(path, shorter_side=side)), "cpu"),
        "for a GPU, processes": (lambda path: backbone.levels(read_image(path, shorter_side=side)), "cuda"),
    }


def seconds(read: Callable[[Path], Any], device: str, paths: list[Path], cores: list[int]) -> float:
    """Return the time of reading all pictures with a thread or process for each core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    started = time.perf_counter()
    try:
        for batch in decoded(in_batches(paths, BATCH), read, str, threads=len(cores), device=device):
            assert not batch.failed, batch.failed
        return time.perf_counter() - started
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="pictures to read; drawn where it is left out")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))[: given.cores]
    with tempfile.TemporaryDirectory() as made:
        backbone = TransformersVision(model=str(write_clip(Path(made) / "clip", ["a"], small=True)))
        drawn = [] if given.folder else draw(Path(made) / "pictures", (500, 375), 100)
        found = list_media(given.folder).paths if given.folder else drawn * (-(-given.pictures // len(drawn)))
        paths = [*map(Path, found[: given.pictures])]
        ways = ways_of(backbone)
        times = np.zeros((given.repeats + 1, len(ways), 2))
        for turn in range(given.repeats + 1):
            for number, (read, device) in enumerate(ways.values()):
                for many in (0, 1):
                    times[turn, number, many] = seconds(read, device, paths, cores if many else cores[:1])
    times = times[1:]  # the first turn is not counted
    medians, ratios = np.median(times, axis=0), np.median(times[:, :, 0] / times[:, :, 1], axis=0)
    print(f"{len(paths)} pictures; {environment()}, load {os.getloadavg()[0]:.1f}\n")
    rows = [
        [name, *(f"{len(paths) / each:,.0f}" for each in medians[number]), f"{ratios[number]:.2f}"]
        for number, name in enumerate(ways)
    ]
    print(table(["pictures a second", "1 core", f"{len(cores)} cores", "ratio, median of pairs"], rows))


if __name__ == "__main__":
    main()
