"""What a collection takes: time, disk and memory of each step, computed from the slopes of the other benchmarks.

``python benchmarks/scaling.py`` prints the tables of docs/scaling.md, and ``--images N --captions M`` one for a
collection of your own. Nothing is measured here: each slope says which benchmark measured it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HOUR, GB = 3600.0, 1e9
CORES = 2  # of the machine on which all slopes were measured


@dataclass(frozen=True)
class Collection:
    """Images with captions.

    Attributes:
        name: for the table.
        images: how many.
        captions: of all images together.
    """

    name: str
    images: float
    captions: float


@dataclass(frozen=True)
class Slope:
    """What a step takes for each image or caption.

    Attributes:
        step: what is done.
        unit: of the value.
        value: computes it for a collection.
    """

    step: str
    unit: str
    value: Callable[[Collection], float]


def per_image(step: str, unit: str, value: float) -> Slope:
    """Return a slope in the number of images."""
    return Slope(step, unit, lambda collection: value * collection.images)


def per_caption(step: str, unit: str, value: float) -> Slope:
    """Return a slope in the number of captions."""
    return Slope(step, unit, lambda collection: value * collection.captions)


SLOPES = (
    per_image("extract grids, EfficientNet-Lite0 (49.5 images/s)", "core hours", CORES / 49.5 / HOUR),
    per_image("store of grids, 49 x 1280, float16", "GB", 49 * 1280 * 2 / GB),
    per_image("store of 26 windows, 1280, float16", "GB", 26 * 1280 * 2 / GB),
    per_caption("store of MiniLM's states (10.9 kB a caption)", "GB", 10.9e3 / GB),
    per_image("memory to find items of a store (190 bytes)", "GB", 190 * 2**20 / 1e6 / GB),
    per_caption("train one epoch (128 pairs in 0.213 s, bf16)", "core hours", CORES * 0.213 / 128 / HOUR),
    per_image("index, or encode (63.5 images/s)", "core hours", CORES / 63.5 / HOUR),
    per_image("index on disk, 512, float16", "GB", (2 * 512 + 92) / GB),
    per_image("the same with the engine int8", "GB", (2 * 512 + 92 + 540) / GB),
    per_image("index in memory, float16, with its ids", "GB", (2 * 512 + 470) / GB),
    per_image("open an index (3.4 s a million)", "s", 3.41e-6),
    per_image("index again when nothing is new (5.5 µs a file)", "s", 0.548 / 1e5),
    per_image("one exact query, 512, float16", "s", 0.047e-6),
    per_image("one query with the engine int8", "s", 0.0419e-6),
)

COLLECTIONS = (
    Collection("COCO", 123_287, 616_767),
    Collection("10 million", 1e7, 1e7),
    Collection("1 billion", 1e9, 1e9),
)


def table(collections: Sequence[Collection]) -> str:
    """Return a table in Markdown with a row for each step."""
    header = ["step", "unit", *(collection.name for collection in collections)]
    rows = [header, ["---", "---", *("---:" for _ in collections)]]
    rows += [
        [slope.step, slope.unit, *(_rounded(slope.value(collection)) for collection in collections)]
        for slope in SLOPES
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rounded(value: float) -> str:
    """Return two significant digits."""
    return f"{float(f'{value:.2g}'):,.10g}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--images", type=float, help="images of a collection of your own")
    parser.add_argument("--captions", type=float, help="its captions; one for each image if absent")
    options = parser.parse_args()
    if options.images is None:
        print(table(COLLECTIONS))
    else:
        print(table([Collection("yours", options.images, options.captions or options.images)]))


if __name__ == "__main__":
    main()
