"""A folder of stores: the one that fits is opened, and doubt is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openvse.errors import StoreError
from openvse.features import FeatureStore, FeatureStoreWriter, open_fitting

STORES = {"grid": ("efficientnet", 3), "patch": ("vit", 5), "regions": ("butd", 4), "more": ("vinvl", 4)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, (fingerprint, dim) in STORES.items():
        with FeatureStoreWriter(tmp_path / name, fingerprint=fingerprint, dim=dim) as writer:
            writer.add("a", torch.ones(1, dim))
    (tmp_path / "notes").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", STORES)
def test_the_encoder_decides(folder: Path, name: str) -> None:
    fingerprint, dim = STORES[name]
    for path in (folder, folder / name):
        store = open_fitting(path, fingerprint=fingerprint, dim=dim)
        assert isinstance(store, FeatureStore) and store.path == folder / name


def test_without_an_encoder_the_width_decides(folder: Path) -> None:
    assert open_fitting(folder, fingerprint=None, dim=5).path == folder / "patch"
    with pytest.raises(StoreError) as error:
        open_fitting(folder, fingerprint=None, dim=4)
    assert str(error.value) == (
        f"2 feature stores in {folder} are of width 4: more (made by 'vinvl', width 4), "
        f"regions (made by 'butd', width 4); name one of them, or set image.encoder.made_by"
    )


def test_none_that_fits_names_all(folder: Path) -> None:
    with pytest.raises(
        StoreError, match=r"no feature store in .* is of encoder 'resnet'; there are grid \(made"
    ) as error:
        open_fitting(folder, fingerprint="resnet", dim=3)
    assert all(name in str(error.value) for name in STORES) and "\n" not in str(error.value)
    with pytest.raises(StoreError, match="is of width 7"):
        open_fitting(folder, fingerprint=None, dim=7)


def test_two_of_one_encoder(folder: Path) -> None:
    (folder / "grid").rename(folder / "train")
    with FeatureStoreWriter(folder / "test", fingerprint="efficientnet", dim=3):
        pass
    with pytest.raises(
        StoreError, match=r"2 .* of encoder 'efficientnet': test .*, train .*; name one of them$"
    ):
        open_fitting(folder, fingerprint="efficientnet", dim=3)


def test_a_store_is_a_store_whatever_lies_in_it(folder: Path) -> None:
    with FeatureStoreWriter(folder, fingerprint="outer", dim=2):
        pass
    assert open_fitting(folder, fingerprint="outer", dim=2).path == folder
    with pytest.raises(StoreError, match="made by encoder 'outer', not by 'vit'"):
        open_fitting(folder, fingerprint="vit", dim=5)


def test_no_store_at_all(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreError, match="no feature store at .*openvse extract"):
            open_fitting(path, fingerprint="vit", dim=5)
