"""Random and consecutive batches from a feature store, against the other ways in which features lie on disk.

Run ``python benchmarks/feature_store.py [--items N] [--store FOLDER]``. Without ``--store`` it writes one to
a temporary folder, shaped like the grids of EfficientNet-Lite0: 4,096 x 49 x 1280 float16, half a gigabyte,
and the same again for each of the other formats. HDF5 needs the extra "hdf5" and is left out without it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from _measure import environment, median_times, peak_memory, table
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import FeatureStore

BATCH = 128
BATCHES = 100
LENGTH, DIM = 49, 1280

Reader = Callable[[np.ndarray], Tensor]


def write_store(path: Path, items: int) -> None:
    grid = torch.randn(LENGTH, DIM, generator=torch.Generator().manual_seed(0))
    with FeatureStoreWriter(path, fingerprint="benchmark", dim=DIM) as writer:
        for number in range(items):
            writer.add(str(number), grid.roll(number, dims=1))


def write_others(store: Path, folder: Path) -> None:
    """Write the store's features as an .npz file an item, and as HDF5 in two ways, where h5py is there."""
    items = stored_items(store, "r")
    for number, item in enumerate(items):
        np.savez(folder / f"{number}.npz", features=item)
    if find_spec("h5py"):
        import h5py

        with h5py.File(folder / "array.h5", "w") as file:
            file.create_dataset("features", data=items, chunks=(1, *items.shape[1:]))
        with h5py.File(folder / "items.h5", "w") as file:
            for number, item in enumerate(items):
                file[str(number)] = item


def stored_items(store: Path, mode: Any) -> np.ndarray:
    rows = np.load(store / "features.npy", mmap_mode=mode)
    return rows.reshape(len(FeatureStore(store)), -1, rows.shape[1])


def read_store(store: Path, _: Path) -> Reader:
    opened = FeatureStore(store)
    return lambda positions: opened.gather(positions).values


def read_loaded(store: Path, _: Path) -> Reader:
    items = stored_items(store, None)
    return lambda positions: torch.from_numpy(items[positions]).float()


def read_mapped(store: Path, _: Path) -> Reader:
    items = stored_items(store, "r")
    return lambda positions: torch.from_numpy(items[positions]).float()


def read_hdf5_array(_: Path, folder: Path) -> Reader:
    import h5py

    features = h5py.File(folder / "array.h5", "r")["features"]

    def read(positions: np.ndarray) -> Tensor:
        # An item at a time: HDF5's own selection of many rows takes longer, and wants them sorted.
        batch = np.empty((len(positions), *features.shape[1:]), features.dtype)
        for item, position in zip(batch, positions.tolist(), strict=True):
            features.read_direct(item, position)
        return torch.from_numpy(batch).float()

    return read


def read_hdf5_items(_: Path, folder: Path) -> Reader:
    import h5py

    file = h5py.File(folder / "items.h5", "r")
    like = file["0"]

    def read(positions: np.ndarray) -> Tensor:
        batch = np.empty((len(positions), *like.shape), like.dtype)
        for item, position in zip(batch, positions.tolist(), strict=True):
            file[str(position)].read_direct(item)
        return torch.from_numpy(batch).float()

    return read


def read_npz(_: Path, folder: Path) -> Reader:
    def read(position: int) -> np.ndarray:
        with np.load(folder / f"{position}.npz") as file:
            return np.asarray(file["features"])

    return lambda positions: torch.from_numpy(np.stack([read(n) for n in positions.tolist()])).float()


READERS = {
    "feature store": read_store,
    "np.load": read_loaded,
    "np.load, mapped": read_mapped,
    ".npz an item": read_npz,
    "HDF5, one array": read_hdf5_array,
    "HDF5, a data set an item": read_hdf5_items,
}


def random_batches(items: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(items, size=(BATCHES, BATCH)))


def consecutive_batches(items: int) -> list[np.ndarray]:
    return [np.arange(start, start + BATCH) for start in range(0, items - BATCH + 1, BATCH)]


def open_and_read(
    open_reader: Callable[[Path, Path], Reader], store: Path, folder: Path, batches: list[np.ndarray]
) -> None:
    read = open_reader(store, folder)
    for positions in batches:
        read(positions)


def read_next(read: Reader, turns: Iterator[np.ndarray]) -> Tensor:
    return read(next(turns))


def times(readers: Sequence[Reader], batches: list[np.ndarray]) -> list[float]:
    """Return each reader's median seconds a batch; all read the same batch in the same turn."""
    turns = [partial(read_next, read, cycle(batches)) for read in readers]
    return median_times(turns, repeats=30, warmup=5)


def measure(store: Path, folder: Path) -> str:
    """Return the table; memory is that of opening and reading 100 random batches, time that of one batch."""
    items = len(FeatureStore(store))
    names = [name for name in READERS if "HDF5" not in name or find_spec("h5py")]
    peaks = [
        peak_memory(partial(open_and_read, READERS[name], store, folder), partial(random_batches, items))
        for name in names
    ]
    readers = [READERS[name](store, folder) for name in names]
    expected = readers[0](np.arange(BATCH))
    assert all(torch.equal(read(np.arange(BATCH)), expected) for read in readers)
    columns = [times(readers, random_batches(items)), times(readers, consecutive_batches(items)), peaks]
    rows = [
        [
            name,
            *(f"{1000 * each[row]:.3g} ({each[row] / each[0]:.2f})" for each in columns[:2]),
            f"{peaks[row] / 2**20:.0f} ({peaks[row] / peaks[0]:.2f})",
        ]
        for row, name in enumerate(names)
    ]
    header = ["reader", f"{BATCH} random, ms (ratio)", f"{BATCH} in order, ms (ratio)", "peak MiB (ratio)"]
    return table(header, rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=4096)
    parser.add_argument("--store", type=Path, help="read this store, whose items must be of one length")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store"
        if arguments.store is None:
            write_store(store, arguments.items)
        write_others(store, Path(folder))
        size = (store / "features.npy").stat().st_size
        print(f"{len(FeatureStore(store)):,} items, {size / 2**20:.0f} MiB; {environment()}\n")
        print(measure(store, Path(folder)))


if __name__ == "__main__":
    main()
