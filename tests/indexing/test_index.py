import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colour_model import ColourModel
from openvse.errors import IndexFormatError, ModelError
from openvse.files import LOCK
from openvse.indexing import Index, build_index, writer
from openvse.indexing import index as layout
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import MANIFEST, UNFINISHED, Item
from openvse.indexing.writer import IndexWriter
from resealing import reseal
from tests.naming import names, refusal

ROOTS = [Root(0, "/photos", "")]
ITEMS = [Item(f"{number}.jpg", 17 + number, 1000) for number in range(6)]


def vectors(count: int = 6, num_embeddings: int = 2, dim: int = 3) -> np.ndarray:
    return np.arange(count * num_embeddings * dim, dtype=np.float32).reshape(count, num_embeddings, dim)


def entries(items: list[Item]) -> list[Entry]:
    return [Entry(item) for item in items]


def write(folder: Path, *, count: int = 6, dtype: str = "float32", model: str = "m1", replace: bool = False) -> Path:
    """Write an index in two parts."""
    with IndexWriter(folder, model=model, roots=ROOTS, dtype=dtype, replace=replace) as writer:
        writer.append(entries(ITEMS[:2]), vectors(count)[:2])
        writer.append(entries(ITEMS[2:count]), vectors(count)[2:])
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
    (file,) = tmp_path.glob("vectors-*.npy")
    assert np.array_equal(np.load(file), vectors())
    index.vectors[0] = 99.0
    assert np.array_equal(np.load(file), vectors())


def test_file_names_outside_unicode_survive(tmp_path: Path) -> None:
    odd = Item(os.fsdecode(b"caf\xe9.jpg"), 1, 2), Item("ü\n\u2028.jpg", 1, 2)
    with IndexWriter(tmp_path, model="m", roots=ROOTS) as writer:
        writer.append(entries([*odd]), vectors(2))
    index = Index.open(tmp_path)
    assert set(index.items) == set(odd)
    assert [index.position(item.id) for item in index.items] == [0, 1]
    assert index.position("gone.jpg") is None


@pytest.mark.medium
def test_a_large_count_fits_the_header(tmp_path: Path) -> None:
    """The header is written before the count is known, and again after."""
    many = [Item(f"{number:05d}", 0, 0) for number in range(2_345)]
    with IndexWriter(tmp_path, model="m", roots=ROOTS, dtype="float16") as writer:
        writer.append(entries(many[:1]), np.zeros((1, 1, 1), np.float32))
        writer.append(entries(many[1:]), np.ones((2_344, 1, 1), np.float32))
    assert Index.open(tmp_path).vectors.sum(dtype=np.float64) == 2_344


def test_a_new_index_replaces_the_old_one_and_its_files(tmp_path: Path) -> None:
    old = Index.open(write(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    new = Index.open(write(tmp_path, count=4, model="m2", replace=True), "m2")
    assert len(new) == 4
    (file,) = tmp_path.glob("vectors-*.npy")
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST, LOCK, "notes.txt", file.name, new.manifest.items}
    assert np.array_equal(old.vectors, vectors())  # who reads the old one goes on reading it


def test_a_failed_write_leaves_what_was_committed(tmp_path: Path) -> None:
    before = files_of(write(tmp_path))
    with (
        pytest.raises(ModelError, match=r"2, 3.*3, 3"),
        IndexWriter(tmp_path, model="m2", roots=ROOTS, replace=True) as writer,
    ):
        writer.append(entries(ITEMS), vectors())
        writer.append(entries(ITEMS), vectors(num_embeddings=3))
    assert files_of(tmp_path) == before


def test_a_killed_write_is_never_opened_and_swept_by_the_next(tmp_path: Path) -> None:
    killed = IndexWriter(tmp_path, model="m1", roots=ROOTS)
    killed.append(entries(ITEMS), vectors())
    assert names(refusal(IndexFormatError, Index.open, tmp_path), "index.json")
    del killed  # its lock ends with it
    for name in (MANIFEST, UNFINISHED):  # killed while it wrote these, once for each
        (tmp_path / f".{name}.partial").write_text("{")
    write(tmp_path)
    assert len(files_of(tmp_path)) == 4
    assert len(Index.open(tmp_path)) == 6


def test_what_was_committed_is_found_while_the_writer_goes_on(tmp_path: Path) -> None:
    with IndexWriter(tmp_path, model="m1", roots=ROOTS) as writer:
        writer.append(entries(ITEMS[:2]), vectors()[:2])
        writer.commit()
        first = Index.open(tmp_path)
        writer.append(entries(ITEMS[2:]), vectors()[2:])
        writer.commit()
        assert (len(first), len(Index.open(tmp_path))) == (2, 6)
        assert not first.is_complete
        assert np.array_equal(first.vectors, vectors()[:2])
    assert Index.open(tmp_path).is_complete


def test_items_are_replaced_dropped_and_added(tmp_path: Path) -> None:
    write(tmp_path)
    more = [Item("1.jpg", 99, 5), Item("00.jpg", 1, 1)]
    with IndexWriter(tmp_path, model="m1", roots=ROOTS) as writer:
        writer.append(entries(more), vectors(2) + 100)
        writer.drop(["5.jpg", "no such"])
    index = Index.open(tmp_path, check=True)
    assert index.items == (ITEMS[0], more[1], more[0], *ITEMS[2:5])
    assert [item.id for item in index.items] == ["0.jpg", "00.jpg", "1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    expected = vectors()
    expected = np.stack([expected[0], vectors(2)[1] + 100, vectors(2)[0] + 100, *expected[2:5]])
    assert np.array_equal(index.vectors, expected)
    assert np.array_equal(index.gather(np.array([4, 1])), expected[[4, 1]])


def test_two_writers_at_once(tmp_path: Path) -> None:
    with IndexWriter(tmp_path, model="m1", roots=ROOTS) as writer:
        writer.append(entries(ITEMS), vectors())
        assert names(refusal(IndexFormatError, write, tmp_path), os.getpid())
    assert len(Index.open(tmp_path)) == 6


def change(**fields: object) -> Callable[[Path], None]:
    """Return a change of the manifest."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**content, **fields}))

    return apply


def truncate(pattern: str, bytes_: int) -> Callable[[Path], None]:
    """Return a cut through a file of the index."""

    def apply(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        path.write_bytes(path.read_bytes()[:-bytes_])

    return apply


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "index.json"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "index.json"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "index.json"),
        (change(version=99), "openvse-index 99.*openvse-index 4"),
        (change(format="parquet"), "parquet 4.*openvse-index 4"),
        (change(colour="red"), "index.json"),
        (change(dim=5), "vectors-.*float32 .6, 2, 3."),
        (change(dtype="float16"), "vectors-.*float32"),
        (change(items="gone.sqlite"), "gone.sqlite"),
        (change(items="../gone.sqlite"), "index.json"),
        (truncate("vectors-*.npy", 10), "'openvse index'"),
        (truncate("items-*.sqlite", 5000), "'openvse index'"),
        (lambda folder: next(folder.glob("vectors-*.npy")).unlink(), "'openvse index'"),
        (lambda folder: next(folder.glob("items-*.sqlite")).write_text("no database"), "'openvse index'"),
    ],
)
def test_a_damaged_index_is_refused_in_one_line(tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(write(tmp_path))
    with pytest.raises(IndexFormatError, match=message or None) as error:
        Index.open(tmp_path)
    assert "openvse index" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_wrong_model_is_named(tmp_path: Path) -> None:
    assert names(refusal(IndexFormatError, lambda: Index.open(write(tmp_path), "m2")), "m1", "m2")
    assert len(Index.open(tmp_path, None)) == 6


def test_an_index_next_to_its_images(tmp_path: Path, photos: Path, model: object) -> None:
    build_index(model, photos, photos / "index")
    report = build_index(model, photos, photos / "index")
    assert (report.count, report.reused) == (4, 4)


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "float32"), (-np.inf, "float32"), (1e6, "float16")])
def test_embeddings_that_are_not_finite_are_not_written(tmp_path: Path, value: float, dtype: str) -> None:
    before = files_of(write(tmp_path / "index", dtype=dtype))
    bad = vectors()
    bad[3, 1, 2] = value
    with (
        pytest.raises(ModelError, match=f"3.jpg.*NaN.*{dtype}"),
        IndexWriter(tmp_path / "index", model="m1", roots=ROOTS, dtype=dtype) as writer,
    ):
        writer.append(entries(ITEMS), bad)
    assert files_of(tmp_path / "index") == before


def test_a_check_names_damaged_embeddings(tmp_path: Path) -> None:
    index = Index.open(write(tmp_path / "index"), check=True)
    reseal(index.path, 4, np.nan)
    reseal(index.path, 5, np.inf)
    assert names(refusal(IndexFormatError, Index.open, tmp_path / "index", check=True), "2 ", "NaN", "4.jpg")
    Index.open(tmp_path / "index")


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def out(model: ColourModel, photos: Path, tmp_path: Path) -> Path:
    build_index(model, photos, tmp_path / "index")
    model.batches.clear()
    return tmp_path / "index"


@pytest.mark.parametrize("place", [-1, 130])
def test_a_small_index_is_checked_when_it_is_opened(out: Path, place: int) -> None:
    (path,) = out.glob("vectors-*")
    flip(path, place)
    assert names(refusal(IndexFormatError, Index.open, out), "1 ", ".png")


def test_a_name_that_changed_is_noticed(out: Path) -> None:
    (path,) = out.glob("items-*")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blue.png", b"blua.png"))
    assert names(refusal(IndexFormatError, Index.open, out), "blua.png")


def test_a_large_index_is_checked_on_request(
    model: ColourModel, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is damaged is embedded again, and nothing else."""
    monkeypatch.setattr(layout, "SMALL_BYTES", 0)
    monkeypatch.setattr(writer, "SMALL_BYTES", 0)
    sound = Index.open(out, check=True).vectors.copy()
    (path,) = out.glob("vectors-*")
    flip(path, -1)
    Index.open(out)
    assert names(refusal(IndexFormatError, Index.open, out, check=True), "red.png")
    assert build_index(model, photos, out).reused == 4  # nothing that is not needed is read
    assert build_index(model, photos, out, check=True).reused == 3
    assert (Index.open(out, check=True).vectors == sound).all()


@pytest.mark.parametrize("pattern", ["vectors-*", "items-*", "index.json"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"SQLite format 3\0"])
def test_a_file_without_its_content_is_repaired(
    model: ColourModel, photos: Path, out: Path, pattern: str, content: bytes
) -> None:
    (path,) = out.glob(pattern)
    path.write_bytes(content)
    assert names(refusal(IndexFormatError, Index.open, out), "'openvse index'")
    assert build_index(model, photos, out).reused == 0
    assert len(Index.open(out, check=True)) == 4
    assert len([*out.iterdir()]) == 4
