"""A feature store of a million items: how long it takes to open, and what a random batch costs.

    python benchmarks/million_items.py [--items 1000000]

The store takes about a gigabyte of disk in a temporary folder. Memory is what a fresh process needs beyond its
imports, at its peak.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from _measure import environment, median_time, peak_memory, table
from openvse.features.store import FEATURES, IDS, LENGTHS, FeatureStore, StoreManifest, encode_ids

LENGTH, DIM = 4, 128
BATCH = 128
BATCHES = 200


def write_store(path: Path, items: int) -> None:
    """Lay the files out at once; a writer that adds a million items takes minutes and makes the same."""
    ids = encode_ids(f"COCO_train2014_{number:012d}.jpg" for number in range(items))
    manifest = StoreManifest("benchmark", DIM, "float16", "benchmark", items, items * LENGTH, len(ids))
    block = np.random.default_rng(0).random((10_000, LENGTH, DIM), np.float32).astype(np.float16)
    with (path / FEATURES).open("wb") as file:
        file.write(manifest.header(FEATURES))
        for start in range(0, items, len(block)):
            file.write(block[: items - start].data)
    (path / LENGTHS).write_bytes(manifest.header(LENGTHS) + np.full(items, LENGTH).tobytes())
    (path / IDS).write_bytes(ids)
    manifest.summed(path, replace(manifest, items=0, rows=0, id_bytes=0)).write(path)


def open_store(path: Path) -> FeatureStore:
    return FeatureStore(path, "benchmark")


def look_up(store: FeatureStore) -> np.ndarray:
    return store.positions([f"COCO_train2014_{number:012d}.jpg" for number in range(0, 128_000, 1000)])


def open_and_look_up(path: Path) -> FeatureStore:
    store = open_store(path)
    look_up(store)
    return store


def read_batches(store: FeatureStore, batches: int) -> None:
    draw = np.random.default_rng(0)
    for _ in range(batches):
        store.gather(draw.integers(len(store), size=BATCH))


def warmed_up(path: Path) -> FeatureStore:
    """Return a store that has read one batch, so that what a library allocates once does not count."""
    store = open_store(path)
    read_batches(store, 1)
    return store


def measure(path: Path) -> str:
    """Return the table: time as a median, memory in a fresh process, above what was there before."""
    batch_bytes = BATCH * LENGTH * DIM * 4
    opened = partial(open_and_look_up, path)
    steps: list[tuple[str, Callable[..., object], Callable[[], object], int]] = [
        ("open", open_store, partial(Path, path), 21),
        (f"open, find {BATCH} ids", open_and_look_up, partial(Path, path), 5),
        (f"find {BATCH} ids again", look_up, opened, 51),
        (f"random batch of {BATCH}", partial(read_batches, batches=1), partial(warmed_up, path), 51),
        (f"{BATCHES} random batches", partial(read_batches, batches=BATCHES), partial(warmed_up, path), 5),
    ]
    lines = []
    for name, step, prepare, repeats in steps:
        peak = peak_memory(step, prepare)
        seconds = median_time(partial(step, prepare()), repeats=repeats)
        lines.append([name, 1000 * seconds, peak / 2**20, peak / batch_bytes])
    return table(["what", "time (ms)", "peak memory (MiB)", "in batches"], lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_store(path, arguments.items)
        size = (path / FEATURES).stat().st_size
        print(
            f"{arguments.items:,} items of {LENGTH} x {DIM}, {size / 2**20:.0f} MiB; a batch has "
            f"{BATCH * LENGTH * DIM * 4 / 2**20:.2f} MiB; {environment()}\n"
        )
        print(measure(path))


if __name__ == "__main__":
    main()
