"""Small files of strangers that stand for gigabytes or for endless work are refused before they are unpacked."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from openvse.datasets import open_corpus
from openvse.datasets import parquet as parquet_module
from openvse.errors import (
    BadFeaturesError,
    BadImageError,
    CheckpointError,
    DataError,
    JsonError,
    OpenVSEError,
    RecipeError,
)
from openvse.features.entries import import_features, read_npz
from openvse.files import parse_json, read_json
from openvse.media.images import read_image
from openvse.specs.load import parse_override, read_recipe
from openvse_papers.hgr import read_role_graphs
from openvse_papers.released import read_vocabulary
from tests.naming import names, refusal

pytestmark = pytest.mark.medium
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def _table(folder: Path, name: str, captions: object, **options: object) -> Path:
    table = pa.table({"file_name": [f"{number}.jpg" for number in range(len(captions))], "caption": captions})
    pq.write_table(table, folder / name, compression="zstd", **options)
    return folder / name


@pytest.mark.parametrize("shared", [True, False])
def test_long_cells_of_parquet_are_refused(shared, tmp_path):
    long = "x" * (1 << 20)
    path = _table(tmp_path, "long.parquet", [f"{long}{number % 2}" for number in range(4)], use_dictionary=shared)
    assert path.stat().st_size < 1 << 14
    assert names(refusal(DataError, open_corpus, str(path), require_images=False), "caption")


def test_columns_of_parquet_are_weighed_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "_SMALL", 1 << 12)
    monkeypatch.setattr(parquet_module, "_cells", None)
    path = _table(tmp_path, "long.parquet", ["x" * 900] * 400, use_dictionary=False, write_statistics=False)
    assert names(refusal(DataError, open_corpus, str(path), require_images=False), "caption")


def test_a_text_that_lists_repeat_counts_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "_MOST_TEXT", 20_000)
    path = _table(tmp_path, "lists.parquet", pa.array([["word " * 20] * 2] * 60))
    assert names(refusal(DataError, open_corpus, str(path), require_images=False), "caption")
    path = _table(tmp_path, "texts.parquet", ["word " * 20] * 120)
    assert len(open_corpus(str(path), require_images=False).image_ids) == 120


def test_cells_of_a_table_are_weighed_before_they_are_made(tmp_path, monkeypatch):
    """Neither a dictionary, a delta, a list nor a view makes gigabytes of some thousand bytes."""
    monkeypatch.setattr(parquet_module, "_SMALL", 1 << 20)
    images = pa.array([{"bytes": bytes(100_000), "path": f"{number}.jpg"} for number in range(100)])
    pq.write_table(pa.table({"image": images, "caption": ["a dog"] * 100}), tmp_path / "images.parquet")
    refusal(BadImageError, open_corpus(str(tmp_path / "images.parquet")).image_paths[0].read_bytes)
    _table(tmp_path, "lists.parquet", pa.array([["dog"] * 20_000] * 10))
    same = ["x" * 10_000 + str(number) for number in range(2_000)]
    _table(tmp_path, "delta.parquet", same, use_dictionary=False, column_encoding={"caption": "DELTA_BYTE_ARRAY"})
    views = pa.ListViewArray.from_arrays(pa.array([0] * 2, pa.int32()), pa.array([1] * 2, pa.int32()), ["a dog"])
    nulls = pa.ListArray.from_arrays(pa.array([0, 1 << 30, (1 << 31) - 1], pa.int32()), pa.nulls((1 << 31) - 1))
    for name, captions in {"views.arrow": views, "nulls.arrow": nulls}.items():
        table = pa.table({"file_name": ["a.jpg", "b.jpg"], "caption": captions})
        with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    for name in ("lists.parquet", "delta.parquet", "views.arrow", "nulls.arrow"):
        assert names(refusal(DataError, open_corpus, str(tmp_path / name), require_images=False), name)


def test_more_rows_than_bytes_are_refused(tmp_path):
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200_000, np.int32)), ["a"])
    pq.write_table(pa.table({"file_name": same, "caption": same}), tmp_path / "rows.parquet")
    refused = refusal(DataError, open_corpus, str(tmp_path / "rows.parquet"), require_images=False)
    assert names(refused, "rows.parquet")


def _arrow(path: Path, *, file: bool = False, compression: str | None = None) -> Path:
    table = pa.table({"file_name": ["a.jpg", "b.jpg"], "caption": ["a dog", "two cats"]})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if file else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("file", [True, False])
def test_compressed_arrow_files_are_refused(file, tmp_path):
    plain = _arrow(tmp_path / "plain.arrow", file=file)
    assert open_corpus(str(plain), require_images=False).captions == ("a dog", "two cats")
    for compression in ("zstd", "lz4"):
        packed = _arrow(tmp_path / "c.arrow", file=file, compression=compression)
        assert names(refusal(DataError, open_corpus, str(packed), require_images=False), "c.arrow")


def test_offsets_of_an_arrow_file_stay_in_it(tmp_path):
    """A mapped file with other offsets would read the memory of the process, or end it."""
    path = _arrow(tmp_path / "offsets.arrow")
    content = bytearray(path.read_bytes())
    at = content.find(struct.pack("<3i", 0, 5, 13))
    content[at : at + 12] = struct.pack("<3i", 0, 1 << 30, (1 << 30) + 1000)
    path.write_bytes(content)
    refusal(DataError, open_corpus, str(path), require_images=False)


def test_archives_of_features_are_weighed_before_they_are_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", features=np.zeros((1 << 10, 1 << 10), np.float32))
    assert (tmp_path / "a.npz").stat().st_size < 1 << 14
    monkeypatch.setattr("openvse.features.entries._MOST", 1 << 21)
    (entry,) = read_npz(tmp_path)
    refusal(BadFeaturesError, entry.read)


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return open, (str(mark), "w")

    evil = np.array([Evil()], dtype=object)
    np.save(tmp_path / "a.npy", evil, allow_pickle=True)
    np.savez(tmp_path / "b.npz", features=evil)
    for kind in ("npy", "npz"):
        refusal(OpenVSEError, import_features, tmp_path, tmp_path / "store", kind=kind)
    assert not mark.exists()


def test_hdf5_reads_no_other_file_and_no_claims(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(b"s" * 64)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        external = [(str(tmp_path / "secret"), 0, 64)]
        file.create_group("a.jpg").create_dataset("features", (4, 4), "f4", external=external)
        file.create_dataset("b.jpg", (1 << 20, 1 << 20), "f4", chunks=(1, 1 << 10))
    refusal(OpenVSEError, import_features, tmp_path / "a.h5", tmp_path / "store")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("features", (1 << 34, 4), "f4", chunks=(1, 4))
        file.create_dataset("ids", (1 << 34,), "i8", chunks=(1,))
    refusal(DataError, import_features, tmp_path / "b.h5", tmp_path / "store")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 101 + "]" * 101, "9" * 5000, "\0", ""])
def test_json_is_bounded_in_depth(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    for read in (lambda: parse_json(text), lambda: read_json(tmp_path / "a.json")):
        refusal(JsonError, read)


def test_json_is_bounded_in_size(tmp_path):
    (tmp_path / "a.json").write_text("[1,2,3,4]")
    refusal(JsonError, read_json, tmp_path / "a.json", most=8)
    (tmp_path / "b.json").symlink_to("/dev/zero")
    refusal(JsonError, read_json, tmp_path / "b.json")


def test_role_graphs_are_not_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("openvse_papers.hgr._MAX_BYTES", 1 << 16)
    (tmp_path / "graphs.json.gz").write_bytes(gzip.compress(b" " * (1 << 22) + b"{}"))
    refusal(DataError, read_role_graphs, tmp_path / "graphs.json.gz")


YAML = {
    "deep": "[" * 50_000,
    "maps": "{a: " * 50_000,
    "itself": "seed: &a [*a]",
    "aliases": "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(30)),
    "date": "seed: !!timestamp 2024-13-45",
    "number": "seed: !!int ''",
    "code": "seed: !!python/object/apply:os.system [ls]",
}


@pytest.mark.parametrize("name", YAML)
def test_recipes_are_refused_before_they_recurse(name, tmp_path):
    (tmp_path / "recipe.yaml").write_text(YAML[name])
    refusal(RecipeError, read_recipe, tmp_path / "recipe.yaml")
    refusal(RecipeError, parse_override, f"seed={YAML[name]}")


class _Runs:
    def __reduce__(self):
        return os.system, ("true",)


VOCABULARIES = {
    "memo.pkl": b"\x80\x02}r\xff\xff\xff\x7f.",
    "text.pkl": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc.",
    "bytes.pkl": b"\x80\x05\x96" + struct.pack("<Q", 1 << 62) + b"abc.",
    "code.pkl": pickle.dumps(_Runs()),
    "deep.json": b"[" * 100_000,
    "deep.pkl": b"\x80\x02" + b"]" * 3_000 + b"a" * 2_999 + b".",
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_are_read_as_they_are(name, tmp_path):
    (tmp_path / name).write_bytes(VOCABULARIES[name])
    refusal(CheckpointError, read_vocabulary, tmp_path / name)


def test_a_checkpoint_that_claims_more_than_it_has_is_refused(tmp_path):
    from openvse.conversion.weights import read_checkpoint

    with zipfile.ZipFile(tmp_path / "a.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (1 << 24))
    refusal(CheckpointError, read_checkpoint, tmp_path / "a.pth")


def _saved(kind: str, side: int = 64, **options: object) -> bytes:
    target = io.BytesIO()
    Image.effect_noise((side, side), 60).convert("RGB").save(target, kind, **options)
    return target.getvalue()


SLOW = {
    "JPEG2000": (_saved("JPEG2000"), 4),
    "AVIF": (_saved("AVIF"), 1.5),
    "PPM of 254 levels": (b"P6\n64 64\n254\n" + b"\1" * 3 * 64 * 64, 10),
    "PPM as text": (b"P3\n64 64\n255\n" + b"1 " * 3 * 64 * 64, 10),
}


@pytest.mark.parametrize("kind", SLOW)
def test_slow_pictures_have_fewer_pixels(kind):
    content, work = SLOW[kind]
    enough = int(64 * 64 * work)
    assert read_image(content, max_pixels=enough).size == (64, 64)
    assert names(refusal(BadImageError, read_image, content, max_pixels=enough - 1), "64 x 64", "kind")
    assert read_image(_saved("PNG"), max_pixels=64 * 64).size == (64, 64)


def _again(content: bytes, times: int) -> bytes:
    """Return a progressive JPEG whose last scan, of one component, comes some times more."""
    starts = [match.start() for match in re.finditer(rb"\xff\xda\0\x08", content)]
    return content[:-2] + content[starts[-1] : -2] * times + content[-2:]


def test_scans_are_weighed_by_the_pixels():
    content = _saved("JPEG", progressive=True, subsampling=0)
    assert read_image(content, max_pixels=64 * 64).size == (64, 64)
    assert read_image(_again(content, 15), max_pixels=64 * 64).size == (64, 64)
    assert names(refusal(BadImageError, read_image, _again(content, 25), max_pixels=64 * 64), "scans")
    assert read_image(_again(content, 25), max_pixels=2 * 64 * 64).size == (64, 64)


def test_a_picture_that_takes_long_is_named(tmp_path, monkeypatch, caplog):
    """The warning also comes where the picture turns out to be damaged."""
    (tmp_path / "good.png").write_bytes(_saved("PNG"))
    (tmp_path / "bad.png").write_bytes(_saved("PNG")[:2000])
    for limit, named in ((10.0, 0), (0.0, 2)):
        monkeypatch.setattr("openvse.media.images.SLOW_S", limit)
        read_image(tmp_path / "good.png")
        refusal(BadImageError, read_image, tmp_path / "bad.png")
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == named
    assert str(tmp_path / "good.png") in said[0] and str(tmp_path / "bad.png") in said[1]


IN_STEPS = ("JPEG", "progressive", "PNG", "GIF", "BMP", "PPM", "JPEG2000")


@pytest.mark.parametrize("kind", IN_STEPS)
def test_a_picture_that_does_not_end_is_given_up_and_named(kind, tmp_path, monkeypatch):
    """The time is that of one processor, so a busy machine gives up no honest picture."""
    options = {"progressive": True} if kind == "progressive" else {}
    (tmp_path / "a.img").write_bytes(_saved("JPEG" if options else kind, 512, **options))
    assert read_image(tmp_path / "a.img").size == (512, 512)
    monkeypatch.setattr("openvse.media.images.MOST_S", -1.0)
    for source in (tmp_path / "a.img", (tmp_path / "a.img").read_bytes()):
        named = "a.img" if isinstance(source, Path) else "bytes"
        assert names(refusal(BadImageError, read_image, source), named)
