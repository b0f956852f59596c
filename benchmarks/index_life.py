"""What an index costs over its life: making it, running it again over unchanged files, adding one image to many.

    python benchmarks/index_life.py [--files 100000] [--items 1000000] [--dim 512] [--images 256] [--repeats 5]
                                    [--only extraction unchanged one]

The first table compares indexing with the extraction of features alone, by the same network over the same drawn JPEG
photos; both take turns and write anew each time. Extraction stops before the pooling, which indexing does as well. The
second runs over a folder of small files that have not changed: the walk alone lists the files and asks for their times,
with the standard library and nothing else.
The third writes an index of many items, opens it and adds one, without a walk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch

from _measure import environment, median_times, table
from extraction import draw
from openvse.features.extract import extract_features
from openvse.indexing import Index, build_index
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.writer import IndexWriter
from openvse.media.listing import list_media
from openvse.media.videos import ClipSource
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe
from openvse.types import EmbeddingSet

BATCH = 32


class NoModel:
    """Embeds nothing: unit vectors, as the files are not read by a network."""

    fingerprint = "benchmark"
    indexable = True
    reads_videos = False

    def read_image(self, image: ClipSource) -> None:
        """Do not read the image."""

    def encode_pixels(self, images: Sequence[None]) -> EmbeddingSet:
        """Return the same vector for every image."""
        vectors = torch.nn.functional.normalize(torch.ones(len(images), 1, 64), dim=-1)
        return EmbeddingSet(vectors, torch.ones(len(images), 1, dtype=torch.bool))


def model_of_images() -> TwoTower:
    """Return an EfficientNet-Lite0 of 224 pixels and GPO, with random weights."""
    tree = {
        "name": "benchmark",
        "embed_dim": 512,
        "image": {"encoder": {"name": "efficientnet_lite0", "pretrained": False}, "aggregator": "gpo"},
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "data": {"source": "nothing.csv"},
        "training": {"phases": [{"epochs": 1}]},
    }
    return build_model(parse_recipe(tree), captions=["a dog"]).eval()


def beside_extraction(folder: Path, images: int, repeats: int) -> str:
    """Return the table of indexing beside extraction."""
    photos = folder / "photos"
    photos.mkdir()
    draw(photos, images, (500, 375))
    model = model_of_images()
    backbone = model.image.encoder.backbone
    paths = list_media(photos).paths
    places: Iterator[Path] = (folder / f"out {number}" for number in count())

    def extract() -> None:
        report = extract_features(backbone, [(path.name, path) for path in paths], next(places), batch_size=BATCH)
        assert report.done == images

    def index() -> None:
        assert build_index(model, photos, next(places), batch_size=BATCH).count == images

    extraction, indexing = median_times([extract, index], repeats, warmup=1)
    rows = [["extraction alone", images / extraction, 1.0], ["indexing", images / indexing, indexing / extraction]]
    return table([f"{images} images", "images/s", "time, ratio to extraction"], rows)


def unchanged(folder: Path, files: int, repeats: int) -> str:
    """Return the table of a run over files that have not changed, beside the walk."""
    for number in range(files):
        place = folder / "many" / f"{number // 1000:04d}"
        if number % 1000 == 0:
            place.mkdir(parents=True)
        (place / f"{number % 1000:03d}.jpg").write_bytes(b"%d" % number)
    build = partial(build_index, NoModel(), folder / "many", folder / "index", batch_size=1024)
    started = time.perf_counter()
    build()
    first = time.perf_counter() - started

    def walk() -> None:
        for parent, _, names in os.walk(folder / "many"):
            for name in names:
                os.stat(f"{parent}/{name}")  # noqa: PTH116 - as quick as it gets

    def again() -> None:
        assert build().reused == files

    walked, repeated = median_times([walk, again], repeats, warmup=1)
    rows = [
        ["the walk alone (os.walk, os.stat)", walked, 1.0],
        ["a run that finds nothing new", repeated, repeated / walked],
        ["the first run, without a network", first, first / walked],
    ]
    return table([f"{files:,} files", "seconds", "ratio to the walk"], rows)


def one_of_many(folder: Path, items: int, dim: int, repeats: int) -> str:
    """Return the table of what one item costs in an index of many."""
    roots = [Root(0, str(folder), "")]
    random = np.random.default_rng(0)
    numbers = iter(range(items, 2 * items))

    def write(names: Sequence[int]) -> None:
        with IndexWriter(folder / "large", model="benchmark", roots=roots, dtype="float16") as writer:
            for start in range(0, len(names), 10_000):
                some = names[start : start + 10_000]
                entries = [Entry(Item(f"{name:09d}.jpg", name, name)) for name in some]
                writer.append(entries, random.random((len(some), 1, dim), np.float32))

    started = time.perf_counter()
    write(range(items))
    rows: list[list[object]] = [[f"write {items:,} items", time.perf_counter() - started]]
    steps: list[tuple[str, Callable[[], object]]] = [
        ("open", lambda: Index.open(folder / "large")),
        ("add 1", lambda: write([next(numbers)])),
    ]
    taken = median_times([step for _, step in steps], repeats, warmup=1)
    rows += [[name, seconds] for (name, _), seconds in zip(steps, taken, strict=True)]
    return table([f"an index of {items:,} x {dim}, float16", "seconds"], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    names = "extraction", "unchanged", "one"
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    print(f"{environment()}\n")
    tables: dict[str, Callable[[Path], str]] = {
        "extraction": lambda folder: beside_extraction(folder, arguments.images, arguments.repeats),
        "unchanged": lambda folder: unchanged(folder, arguments.files, arguments.repeats),
        "one": lambda folder: one_of_many(folder, arguments.items, arguments.dim, arguments.repeats),
    }
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{tables[name](Path(folder))}\n", flush=True)


if __name__ == "__main__":
    main()
