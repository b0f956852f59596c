"""Checksums of a store: what changed on the disk is noticed."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.errors import StoreError
from openvse.features.store import BOXES, FEATURES, HEADER_BYTES, IDS, LENGTHS, MANIFEST, FeatureStore
from openvse.features.writer import FeatureStoreWriter


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
    FeatureStore(store, check=True)
    flip(store / name, place)
    with pytest.raises(StoreError, match=f"{name}"):
        FeatureStore(store)


def test_a_large_file_is_compared_on_request(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "openvse.features.store.SMALL_BYTES", HEADER_BYTES + 50
    )  # all but the features and boxes
    flip(store / FEATURES, -1)
    FeatureStore(store)
    with pytest.raises(StoreError, match="checksum"):
        FeatureStore(store, check=True)


def test_a_store_that_grew_equals_one_written_at_once(store: Path, tmp_path: Path) -> None:
    with FeatureStoreWriter(
        tmp_path / "once", fingerprint="vit", dim=4, dtype="float32", boxes=True
    ) as writer:
        for number in (1, 2, 3):
            writer.add(
                f"item {number}", torch.full((2, 4), float(number)), torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
            )
    assert (store / MANIFEST).read_bytes() == (tmp_path / "once" / MANIFEST).read_bytes()


def test_what_comes_after_the_last_commit_is_not_compared(store: Path) -> None:
    with (store / FEATURES).open("ab") as file:
        file.write(b"the rest of an interrupted write")
    assert len(FeatureStore(store, check=True)) == 3
    add(store, 4)
    assert len(FeatureStore(store, check=True)) == 4


@pytest.mark.parametrize("lengths", [[0, 6], [-1, 7]])
def test_an_item_without_features_is_damage(tmp_path: Path, lengths: list[int]) -> None:
    with FeatureStoreWriter(tmp_path, fingerprint="vit", dim=4) as writer:
        for item in ("a", "b"):
            writer.add(item, torch.ones(3, 4))
    header, items = (tmp_path / LENGTHS).read_bytes()[:HEADER_BYTES], np.array(lengths, "<i8").tobytes()
    (tmp_path / LENGTHS).write_bytes(header + items)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["sums"][LENGTHS] = zlib.crc32(items)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="lengths.npy"):
        FeatureStore(tmp_path)
