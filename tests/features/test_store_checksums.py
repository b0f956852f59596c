"""Checksums of a store: what changed on the disk is noticed, and stores without them stay as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.errors import StoreError
from openvse.features import FeatureStore, FeatureStoreWriter, layout
from openvse.features.layout import BOXES, CHECKSUMS, FEATURES, HEADER_BYTES, IDS, LENGTHS, MANIFEST


def add(path: Path, *numbers: int) -> None:
    """Add items of two features each, every one with a commit of its own."""
    with FeatureStoreWriter(path, fingerprint="vit", dim=4, dtype="float32", boxes=True) as writer:
        for number in numbers:
            writer.add(
                f"item {number}", torch.full((2, 4), float(number)), torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
            )
            writer.commit()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    add(tmp_path / "store", 1, 2)
    add(tmp_path / "store", 3)
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("name", "place"), [(FEATURES, -1), (FEATURES, HEADER_BYTES), (BOXES, -2), (LENGTHS, -8), (IDS, 2)]
)
def test_a_flipped_bit_in_a_small_file_is_noticed(store: Path, name: str, place: int) -> None:
    FeatureStore.open(store, check=True)
    flip(store / name, place)
    with pytest.raises(StoreError, match=f"{name}"):
        FeatureStore.open(store)


def test_a_large_file_is_compared_on_request(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SMALL_BYTES", HEADER_BYTES + 50)  # all but the features and boxes
    flip(store / FEATURES, -1)
    FeatureStore.open(store)
    with pytest.raises(StoreError, match="checksum"):
        FeatureStore.open(store, check=True)


def test_a_store_that_grew_equals_one_written_at_once(store: Path, tmp_path: Path) -> None:
    with FeatureStoreWriter(
        tmp_path / "once", fingerprint="vit", dim=4, dtype="float32", boxes=True
    ) as writer:
        for number in (1, 2, 3):
            writer.add(
                f"item {number}", torch.full((2, 4), float(number)), torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
            )
    assert (store / CHECKSUMS).read_bytes() == (tmp_path / "once" / CHECKSUMS).read_bytes()


def test_a_commit_whose_checksums_were_lost_is_covered_by_the_next(store: Path, tmp_path: Path) -> None:
    """A kill between the manifest and its checksums; or an openvse that does not know them adds items."""
    shutil.copy(store / CHECKSUMS, tmp_path / "before")
    add(store, 4)
    shutil.copy(tmp_path / "before", store / CHECKSUMS)
    assert len(FeatureStore.open(store, check=True)) == 4
    add(store, 5)
    FeatureStore.open(store, check=True)
    flip(store / FEATURES, HEADER_BYTES + 3 * 32 + 1)  # of the item that nobody had covered
    with pytest.raises(StoreError, match="checksum"):
        FeatureStore.open(store)


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"items": 1}', b'{"items": 99, "rows": 0, "id_bytes": 0, "sums": {}}']
)
def test_a_store_without_checksums_is_read_and_added_to(store: Path, content: bytes | None) -> None:
    (store / CHECKSUMS).unlink()
    if content is not None:
        (store / CHECKSUMS).write_bytes(content)
    add(store, 4)
    assert len(FeatureStore.open(store, check=True)) == 4
    assert not (store / CHECKSUMS).exists() or (store / CHECKSUMS).read_bytes() == content


def test_checksums_of_a_store_that_was_deleted_do_not_count(store: Path) -> None:
    for name in (MANIFEST, FEATURES, BOXES):
        (store / name).unlink()
    add(store, 7)
    assert len(FeatureStore.open(store, check=True)) == 1


@pytest.mark.parametrize("lengths", [[0, 6], [-1, 7]])
def test_an_item_without_features_is_damage(tmp_path: Path, lengths: list[int]) -> None:
    with FeatureStoreWriter(tmp_path, fingerprint="vit", dim=4) as writer:
        for item in ("a", "b"):
            writer.add(item, torch.ones(3, 4))
    (tmp_path / CHECKSUMS).unlink()
    header = (tmp_path / LENGTHS).read_bytes()[:HEADER_BYTES]
    (tmp_path / LENGTHS).write_bytes(header + np.array(lengths, "<i8").tobytes())
    with pytest.raises(StoreError, match="lengths.npy"):
        FeatureStore.open(tmp_path)
