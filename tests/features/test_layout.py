"""The files of a store: headers that numpy reads, a manifest that refuses what it cannot trust."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.errors import StoreError
from openvse.features.store import (
    BOXES,
    FEATURES,
    HEADER_BYTES,
    IDS,
    LENGTHS,
    MANIFEST,
    StoreManifest,
    encode_ids,
    npy_header,
    read_ids,
)
from tests.naming import names, refusal

SUMS = {FEATURES: 0, LENGTHS: 1, IDS: 2}
MADE = StoreManifest("vit:224", dim=4, dtype="float16", created_by="0.1.0", items=2, rows=3, id_bytes=4, sums=SUMS)


def write_store(folder: Path) -> Path:
    """Write the files that ``MADE`` describes."""
    features = MADE.header(FEATURES) + np.zeros((3, 4), np.float16).tobytes()
    (folder / FEATURES).write_bytes(features)
    (folder / LENGTHS).write_bytes(MADE.header(LENGTHS) + np.array([1, 2]).tobytes())
    (folder / IDS).write_bytes(b"a\nb\n")
    MADE.write(folder)
    return folder


@pytest.mark.medium
@given(
    dtype=st.sampled_from(["float16", "float32", "int64"]),
    shape=st.lists(st.integers(0, 10**15), min_size=1, max_size=2).map(tuple),
)
def test_numpy_reads_the_header(dtype: str, shape: tuple[int, ...]) -> None:
    header = npy_header(np.dtype(dtype), shape)
    assert len(header) == HEADER_BYTES
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype(dtype))
    assert file.tell() == HEADER_BYTES


def test_manifest_survives_the_disk(tmp_path: Path) -> None:
    MADE.write(tmp_path)
    assert StoreManifest.read(tmp_path) == MADE
    fields = json.loads((tmp_path / MANIFEST).read_text())
    assert (fields["format"], fields["version"]) == ("openvse-features", 3)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST], "no partial file stays"


def test_sizes_follow_the_counts() -> None:
    assert MADE.file_bytes == {FEATURES: HEADER_BYTES + 24, LENGTHS: HEADER_BYTES + 16, IDS: 4}
    assert replace(MADE, dtype="float32").file_bytes[FEATURES] == HEADER_BYTES + 48
    assert replace(MADE, boxes=True).file_bytes == MADE.file_bytes | {BOXES: HEADER_BYTES + 48}


def test_boxes_have_a_header_of_their_own(tmp_path: Path) -> None:
    with_boxes = replace(MADE, boxes=True, sums={**MADE.sums, BOXES: 3})
    with_boxes.write(tmp_path)
    assert StoreManifest.read(tmp_path) == with_boxes
    file = io.BytesIO(with_boxes.header(BOXES))
    np.lib.format.read_magic(file)
    assert np.lib.format.read_array_header_1_0(file) == ((3, 4), False, np.dtype("float32"))


@pytest.mark.medium
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1)))
def test_ids_survive_encoding(ids: list[str]) -> None:
    ids += ["caf\udce9.jpg", "a\u2028b", "\r"]  # a name that is no UTF-8, and line ends that are none here
    encoded = encode_ids(ids)
    assert encoded.count(b"\n") == len(ids)
    assert encoded.decode(errors="surrogateescape").split("\n")[:-1] == ids


def test_ids_stop_at_the_commit(tmp_path: Path) -> None:
    (tmp_path / IDS).write_bytes(b"a\nb\nhalf writ")
    assert read_ids(tmp_path, MADE) == ("a", "b")
    assert names(refusal(StoreError, read_ids, tmp_path, replace(MADE, items=3)), 2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "other 3"),
        ({"version": 2}, "openvse-features 2"),
        ({"sums": {}}, "store.json"),
        ({"sums": {"features.npy": "0"}}, "store.json"),
        ({"sums": 1}, "store.json"),
        ({"boxes": 1}, "store.json"),
        ({"items": -1}, "store.json"),
        ({"rows": 1.5}, "store.json"),
        ({"dim": True}, "store.json"),
        ({"dtype": "int8"}, "store.json"),
        ({"surprise": 1}, "store.json"),
    ],
)
def test_a_manifest_that_cannot_be_trusted(tmp_path: Path, change: dict[str, object], message: str) -> None:
    MADE.write(tmp_path)
    fields = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(fields | change))
    assert names(refusal(StoreError, StoreManifest.read, tmp_path), message)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "openvse-features"}', "\udcff"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text, errors="surrogateescape")
    assert names(refusal(StoreError, StoreManifest.read, tmp_path), "store.json")


def test_a_missing_store_says_how_to_make_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert names(refusal(StoreError, StoreManifest.read, folder), folder, "store.json", "'openvse extract'")


def test_another_encoder_is_refused_by_name(tmp_path: Path) -> None:
    write_store(tmp_path)
    MADE.check(tmp_path, None)
    MADE.check(tmp_path, "vit:224")
    assert names(refusal(StoreError, MADE.check, tmp_path, "resnet:224"), "'vit:224'", "'resnet:224'")


@pytest.mark.parametrize("name", [FEATURES, LENGTHS, IDS])
def test_a_file_that_lost_its_end_is_damage(tmp_path: Path, name: str) -> None:
    path = write_store(tmp_path) / name
    content = path.read_bytes()
    path.write_bytes(content + b"more")
    MADE.check(tmp_path, None)
    path.write_bytes(content[:-1])
    assert names(refusal(StoreError, MADE.check, tmp_path, None), name, len(content) - 1, len(content))
    path.unlink()
    assert names(refusal(StoreError, MADE.check, tmp_path, None), name, "0")
