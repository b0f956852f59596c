"""Random batches from a feature store, against the same file loaded into memory or mapped by numpy.

Run ``python benchmarks/feature_store.py [--items N] [--store FOLDER]``. Without ``--store`` it writes one to
a temporary folder, shaped like the grids of EfficientNet-Lite0: 4,096 x 49 x 1280 float16, half a gigabyte.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from _measure import environment, median_times, peak_memory, table
from openvse.features_store import FeatureStore, FeatureStoreWriter

BATCH = 128
BATCHES = 100
LENGTH, DIM = 49, 1280

Reader = Callable[[np.ndarray], Tensor]


def write_store(path: Path, items: int) -> None:
    grid = torch.randn(LENGTH, DIM, generator=torch.Generator().manual_seed(0))
    with FeatureStoreWriter(path, fingerprint="benchmark", dim=DIM) as writer:
        for number in range(items):
            writer.add(str(number), grid.roll(number, dims=1))


def read_store(path: Path) -> Reader:
    store = FeatureStore.open(path)
    return lambda positions: store.gather(positions).values


def read_loaded(path: Path) -> Reader:
    return _indexed(np.load(path / "features.npy"))


def read_mapped(path: Path) -> Reader:
    return _indexed(np.load(path / "features.npy", mmap_mode="r"))


def _indexed(rows: np.ndarray) -> Reader:
    items = rows.reshape(-1, LENGTH, rows.shape[1])
    return lambda positions: torch.from_numpy(items[positions]).float()


READERS = {"feature store": read_store, "np.load": read_loaded, "np.load, mapped": read_mapped}


def random_batches(path: Path) -> list[np.ndarray]:
    items = len(FeatureStore.open(path))
    return list(np.random.default_rng(0).integers(items, size=(BATCHES, BATCH)))


def open_and_read(open_reader: Callable[[Path], Reader], path: Path, batches: list[np.ndarray]) -> None:
    read = open_reader(path)
    for positions in batches:
        read(positions)


def read_next(read: Reader, turns: Iterator[np.ndarray]) -> Tensor:
    return read(next(turns))


def measure(path: Path) -> str:
    """Return the table; memory is that of opening and reading 100 batches, time that of one batch."""
    batches = random_batches(path)
    names = list(READERS)
    peaks = [
        peak_memory(partial(open_and_read, READERS[name], path), partial(random_batches, path))
        for name in names
    ]
    turns = cycle(batches)
    readers = [READERS[name](path) for name in names]
    times = median_times([partial(read_next, read, turns) for read in readers], repeats=50, warmup=10)
    rows = [
        [name, f"{peak / 2**20:.0f}", f"{peak / peaks[0]:.2f}", time * 1000, f"{time / times[0]:.2f}"]
        for name, peak, time in zip(names, peaks, times, strict=True)
    ]
    header = ["reader", "peak memory (MiB)", "memory ratio", f"batch of {BATCH} (ms)", "time ratio"]
    return table(header, rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=4096)
    parser.add_argument("--store", type=Path, help="read this store, with 49 local features an item")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.store or Path(folder)
        if arguments.store is None:
            write_store(path, arguments.items)
        size = (path / "features.npy").stat().st_size
        print(f"{len(FeatureStore.open(path)):,} items, {size / 2**20:.0f} MiB; {environment()}\n")
        print(measure(path))


if __name__ == "__main__":
    main()
