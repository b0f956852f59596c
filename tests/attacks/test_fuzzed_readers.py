"""Whatever bytes a stranger writes, a reader of them returns or raises an error of openvse, in bounded time."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from openvse.datasets import open_corpus
from openvse.errors import BadFeaturesError, OpenVSEError
from openvse.features.arrays import ArrayRows
from openvse.features.entries import import_features, reading_item
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import FeatureStore
from openvse.indexing.manifest import read_manifest
from openvse.media.headers import read_xmp
from openvse.model.base import read_config
from openvse.runtime.model import read_description
from openvse.tokenization.vocabulary import Vocabulary
from openvse_papers.released import read_vocabulary
from photographs import read_header
from tests.naming import refusal

pytestmark = pytest.mark.medium
QUICK = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LONGEST_S = 2.0

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def mutated(content: bytes) -> st.SearchStrategy[bytes]:
    """Return changes of a sound file: some of its bytes are others, and it may end early."""
    changes = st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), min_size=1, max_size=6)

    def change(drawn: tuple[list[tuple[int, int]], int]) -> bytes:
        whole = bytearray(content)
        for place, value in drawn[0]:
            whole[place] = value
        return bytes(whole[: drawn[1]])

    return st.tuples(changes, st.integers(len(content) // 2, len(content) * 2)).map(change)


def survives(read: Callable[[], object]) -> None:
    """Call a reader; only errors of openvse may come out of it, and soon."""
    began = time.process_time()
    try:
        read()
    except OpenVSEError as error:
        assert "\n" not in str(error)
    assert time.process_time() - began < LONGEST_S


def changed_trees(fields: dict[str, object]) -> st.SearchStrategy[bytes]:
    """Return a sound document of which some values are others, or missing."""
    keys = st.sampled_from(sorted(fields))
    changes = st.dictionaries(keys, trees, max_size=3)
    gone = st.sets(keys, max_size=1)

    def change(drawn: tuple[dict[str, object], set[str]]) -> bytes:
        tree = {key: value for key, value in (fields | drawn[0]).items() if key not in drawn[1]}
        return json.dumps(tree).encode("utf-8", "surrogatepass")

    return (
        st.tuples(changes, gone).map(change)
        | trees.map(lambda tree: json.dumps(tree).encode())
        | st.binary(max_size=40)
    )


INDEX: dict[str, object] = {
    "format": "openvse-index",
    "version": 4,
    "model": "0123",
    "num_embeddings": 1,
    "dim": 4,
    "dtype": "float32",
    "created": "2026-01-01T00:00:00+00:00",
    "items": "items.sqlite",
    "model_place": {"hub": "a/b"},
    "holds": "images",
    "engine": None,
    "gaussians": False,
}
EXPORT: dict[str, object] = {"kind": "openvse-export", "version": 1, "image": {}, "text": {}, "num_embeddings": [1, 1]}
CONFIG: dict[str, object] = {"format_version": 2, "task": "retrieval", "spec": {}, "provenance": {}}
METADATA: dict[str, object] = {"file_name": "a.jpg", "captions": ["a dog", "it runs"], "split": "train", "text": "a"}
FILES: dict[str, tuple[dict[str, object], Callable[[Path], object]]] = {
    "index.json": (INDEX, lambda path: read_manifest(path.parent)),
    "export.json": (EXPORT, lambda path: read_description(path.parent)),
    "config.json": (CONFIG, lambda path: read_config(path.parent)),
    "words.json": ({"words": ["a", "b"]}, Vocabulary.load),
    "vocabulary.json": ({"word2idx": {"a": 0, "b": 1}, "idx": 2}, read_vocabulary),
    "metadata.jsonl": (METADATA, lambda path: open_corpus(str(path), require_images=False)),
}


@pytest.mark.parametrize("name", FILES)
def test_documents_of_json(name, tmp_path):
    fields, read = FILES[name]
    (tmp_path / "model.safetensors").write_bytes(b"")

    @QUICK
    @given(changed_trees(fields))
    def check(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        survives(lambda: read(tmp_path / name))

    check()


@QUICK
@given(content=mutated(b'file_name,caption,split\na.jpg,"a dog, red",train\nb.jpg;c|d,\xc3\xa9t\xc3\xa9,test\n'))
def test_tables(content, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)
    survives(lambda: open_corpus(str(tmp_path / "a.csv"), require_images=False))


@QUICK
@given(
    mutated(
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/></x:xmpmeta>'
    )
)
def test_xmp(content):
    survives(lambda: read_xmp(content))


def _photo() -> bytes:
    """Return a small JPEG with EXIF, a place, and IPTC."""
    exif = Image.Exif()
    exif[0x010F], exif[0x010E] = "Maker", "A description"
    exif.get_ifd(0x8769)[0x9003] = "2024:06:01 10:00:00"
    exif.get_ifd(0x8825)[1], exif.get_ifd(0x8825)[2] = "N", (48.0, 8.0, 0.0)
    target = BytesIO()
    Image.new("RGB", (8, 8)).save(target, "JPEG", exif=exif)
    said = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + struct.pack(">I", 10) + b"\x1c\x02\x05\0\x05title"
    iptc = b"\xff\xed" + struct.pack(">H", len(said) + 2) + said
    whole = target.getvalue()
    return whole[:2] + iptc + whole[2:]


@QUICK
@given(content=mutated(_photo()))
def test_headers_of_photographs(content, tmp_path):
    (tmp_path / "a.jpg").write_bytes(content)
    survives(lambda: read_header(tmp_path / "a.jpg"))


def _array() -> bytes:
    target = BytesIO()
    np.save(target, np.ones((3, 2, 4), np.float32))
    return target.getvalue()


def test_a_header_that_is_no_python(tmp_path):
    """NumPy raises errors of Python's own tokenizer for it."""
    content = _array().replace(b"'descr': '<f4'", b"'descr'( '<f4'", 1)
    (tmp_path / "a.npy").write_bytes(content)
    refusal(OpenVSEError, ArrayRows, tmp_path / "a.npy")
    with pytest.raises(BadFeaturesError), reading_item():
        np.load(tmp_path / "a.npy")


@QUICK
@given(content=mutated(_array()))
def test_arrays(content, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    survives(lambda: ArrayRows(tmp_path / "a.npy").read(0))


@QUICK
@given(content=st.binary(max_size=60), size=st.integers(0, 2**63 - 1))
def test_archives(content, size, tmp_path_factory):
    import tarfile

    folder = tmp_path_factory.mktemp("tar")
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("a.txt", "a.json", "a.jpg"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    whole = bytearray((folder / "a.tar").read_bytes())
    whole[124:136] = f"{size % 8**11:011o}\0".encode()
    (folder / "a.tar").write_bytes(whole)
    survives(lambda: open_corpus(str(folder / "a.tar"), require_images=False))


@pytest.mark.parametrize("name", ["store.json", "lengths.npy", "features.npy", "ids.txt"])
def test_feature_stores(name, tmp_path):
    import torch

    with FeatureStoreWriter(tmp_path / "store", fingerprint="x", dim=2, dtype="float32") as writer:
        for item in "ab":
            writer.add(item, torch.ones(3, 2))
    sound = (tmp_path / "store" / name).read_bytes()

    @QUICK
    @given(content=mutated(sound))
    def check(content: bytes) -> None:
        (tmp_path / "store" / name).write_bytes(content)

        def read() -> None:
            store = FeatureStore(tmp_path / "store")
            store.gather(store.positions(["a"]))

        survives(read)

    check()


@QUICK
@given(content=mutated(b"a.jpg\t2\t" + b"AACAPwAAgD8=" * 1 + b"\n"))
def test_tables_of_features(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tsv")
    (folder / "a.tsv").write_bytes(content)
    survives(lambda: import_features(folder / "a.tsv", folder / "store"))
