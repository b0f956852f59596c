from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from old_index import without_checksums

from openvse.errors import IndexFormatError, ModelError
from openvse.files import LOCK
from openvse.search import Index, Item, build_index
from openvse.search.index import MANIFEST
from openvse.search.writer import IndexWriter

ITEMS = [Item(f"{number}.jpg", 17 + number, 1000) for number in range(6)]


def vectors(count: int = 6, num_embeddings: int = 2, dim: int = 3) -> np.ndarray:
    return np.arange(count * num_embeddings * dim, dtype=np.float32).reshape(count, num_embeddings, dim)


def write(folder: Path, *, count: int = 6, dtype: str = "float32", model: str = "m1") -> Path:
    """Write an index in two parts."""
    with IndexWriter(folder, model=model, root=Path("/photos"), dtype=dtype) as writer:
        writer.append(ITEMS[:2], vectors(count)[:2])
        writer.append(ITEMS[2:count], vectors(count)[2:])
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip(tmp_path: Path, dtype: str) -> None:
    index = Index.open(write(tmp_path / "index", dtype=dtype), "m1")
    assert len(index) == 6
    assert index.items == tuple(ITEMS)
    assert np.array_equal(index.vectors, vectors())
    assert index.vectors.dtype == index.manifest.dtype == dtype
    assert index.image_path(4) == Path("/photos/4.jpg")
    assert index.manifest.created.endswith("+00:00")


def test_vectors_are_mapped_and_the_file_is_plain_numpy(tmp_path: Path) -> None:
    index = Index.open(write(tmp_path))
    assert isinstance(index.vectors, np.memmap)
    assert np.array_equal(np.load(tmp_path / index.manifest.vectors), vectors())
    index.vectors[0] = 99.0
    assert np.array_equal(np.load(tmp_path / index.manifest.vectors), vectors())


def test_file_names_outside_unicode_survive(tmp_path: Path) -> None:
    odd = Item(os.fsdecode(b"caf\xe9.jpg"), 1, 2), Item("ü\n\u2028.jpg", 1, 2)
    with IndexWriter(tmp_path, model="m", root=tmp_path, dtype="float32") as writer:
        writer.append(odd, vectors(2))
    assert Index.open(tmp_path).items == odd


@pytest.mark.medium
def test_a_large_count_fits_the_header(tmp_path: Path) -> None:
    """The header is written before the count is known, and again after."""
    many = [Item("a", 0, 0)] * 12_345
    with IndexWriter(tmp_path, model="m", root=tmp_path, dtype="float16") as writer:
        writer.append(many[:1], np.zeros((1, 1, 1), np.float32))
        writer.append(many[1:], np.ones((12_344, 1, 1), np.float32))
    assert Index.open(tmp_path).vectors.sum(dtype=np.float64) == 12_344


def test_a_new_index_replaces_the_old_one_and_its_files(tmp_path: Path) -> None:
    old = Index.open(write(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    new = Index.open(write(tmp_path, count=4, model="m2"), "m2")
    assert len(new) == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        MANIFEST,
        LOCK,
        "notes.txt",
        new.manifest.vectors,
        new.manifest.items,
    }
    assert np.array_equal(old.vectors, vectors())  # who reads the old one goes on reading it


def test_a_failed_write_leaves_the_old_index(tmp_path: Path) -> None:
    before = files_of(write(tmp_path))
    with (
        pytest.raises(RuntimeError, match="on the way"),
        IndexWriter(tmp_path, model="m2", root=tmp_path, dtype="float32") as writer,
    ):
        writer.append(ITEMS, vectors())
        raise RuntimeError("on the way")
    assert files_of(tmp_path) == before


def test_a_killed_write_is_never_opened_and_swept_by_the_next(tmp_path: Path) -> None:
    killed = IndexWriter(tmp_path, model="m1", root=tmp_path, dtype="float32")
    killed.append(ITEMS, vectors())
    with pytest.raises(IndexFormatError, match="is not an index"):
        Index.open(tmp_path)
    del killed  # its lock ends with it
    write(tmp_path)
    assert len(files_of(tmp_path)) == 4
    assert len(Index.open(tmp_path)) == 6


def test_two_writers_at_once(tmp_path: Path) -> None:
    with IndexWriter(tmp_path, model="m1", root=tmp_path, dtype="float32") as writer:
        writer.append(ITEMS, vectors())
        with pytest.raises(IndexFormatError, match=f"is being written by process {os.getpid()}: wait"):
            write(tmp_path)
    assert len(Index.open(tmp_path)) == 6


def change(**fields: object) -> Callable[[Path], None]:
    """Return a change of the manifest."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**content, **fields}))

    return apply


def truncate(pattern: str) -> Callable[[Path], None]:
    """Return a cut through a file of the index."""

    def apply(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        path.write_bytes(path.read_bytes()[:-10])

    return apply


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "is not an index"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be understood"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "cannot be understood"),
        (change(version=99), "has format openvse-index 99, but this openvse reads openvse-index 1 to 2"),
        (change(format="parquet"), "has format parquet 2"),
        (change(colour="red"), "cannot be understood"),
        (change(count=5), "6 images, float32 .6, 2, 3. instead of float32 .5, 2, 3."),
        (change(dtype="float16"), "instead of float16"),
        (change(vectors="gone.npy"), "gone.npy"),
        (truncate("vectors-*.npy"), "is damaged"),
        (truncate("items-*.jsonl"), "is damaged"),
    ],
)
def test_a_damaged_index_is_refused_in_one_line(
    tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(write(tmp_path))
    with pytest.raises(IndexFormatError, match=message) as error:
        Index.open(tmp_path)
    assert "openvse index" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_wrong_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="was made by model m1, not by m2: use that model, or run"):
        Index.open(write(tmp_path), "m2")
    assert len(Index.open(tmp_path, None)) == 6


def test_an_index_next_to_its_images(tmp_path: Path, photos: Path, model: object) -> None:
    build_index(model, photos, photos / "index")
    report = build_index(model, photos, photos / "index")
    assert (report.count, report.reused) == (4, 4)


def damage(index: Index, position: int, value: float = np.nan) -> None:
    """Overwrite a number of an embedding on disk."""
    file = np.load(index.path / index.manifest.vectors, mmap_mode="r+")
    file[position, -1, 0] = value
    file.flush()


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "float32"), (-np.inf, "float32"), (1e6, "float16")])
def test_embeddings_that_are_not_finite_are_not_written(tmp_path: Path, value: float, dtype: str) -> None:
    before = files_of(write(tmp_path / "index", dtype=dtype))
    bad = vectors()
    bad[3, 1, 2] = value
    with (
        pytest.raises(ModelError, match=f"embedding of 3.jpg holds NaN or infinite numbers as {dtype}"),
        IndexWriter(tmp_path / "index", model="m1", root=Path("/photos"), dtype=dtype) as writer,
    ):
        writer.append(ITEMS, bad)
    assert files_of(tmp_path / "index") == before


def test_a_check_names_damaged_embeddings(tmp_path: Path) -> None:
    index = Index.open(without_checksums(write(tmp_path / "index")), check=True)
    damage(index, 4)
    damage(index, 5, np.inf)
    with pytest.raises(
        IndexFormatError, match="embeddings of 2 images hold NaN or infinite numbers, first 4.jpg"
    ):
        Index.open(tmp_path / "index", check=True)
    Index.open(tmp_path / "index")


def test_a_check_compares_the_checksum_first(tmp_path: Path) -> None:
    index = Index.open(write(tmp_path / "index"))
    index.check()
    damage(index, 4)
    with pytest.raises(IndexFormatError, match="does not match its checksum"):
        index.check()
