"""Features of a store stand for the images that they were made of, as long as those are what they were."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from openvse.aggregators import GPO
from openvse.backbones import Precomputed, ResNet
from openvse.encoders import BiGRU, ImageEncoder
from openvse.errors import StoreError
from openvse.features.extract import StoredFeatures, extract_features, find_stored_features
from openvse.features.store import SOURCES, FeatureStore, read_sources
from openvse.indexing import Index, build_index
from openvse.model.two_tower import Tower, TwoTower
from openvse.similarities import SetMax
from tests.conftest import PhotoMaker

RESNET = {"blocks": (1, 1, 1, 1), "stem_dim": 4, "inner_dim": 4, "fine_tune": False}


def two_tower(image_size: int = 32) -> TwoTower:
    image = ImageEncoder(backbone=ResNet(**RESNET, image_size=image_size), embed_dim=8)
    text = BiGRU(embed_dim=8, captions=["a red dog"], min_count=1, word_dim=6)
    towers = [Tower(encoder, GPO(input_dim=8, embed_dim=8)) for encoder in (image, text)]
    return TwoTower(*towers, SetMax()).eval()


@pytest.fixture
def model() -> TwoTower:
    return two_tower()


@pytest.fixture
def photos(make_photos: PhotoMaker, tmp_path: Path) -> Path:
    make_photos(5)
    return tmp_path / "photos"


@pytest.fixture
def store(model: TwoTower, photos: Path, tmp_path: Path) -> Path:
    """A store of four of five photos, in the place that it has beside a run's best model."""
    images = [(f"id of {path.name}", path) for path in sorted(photos.iterdir())[:4]]
    extract_features(model.image.encoder.backbone, images, tmp_path / "run" / "features", dtype="float32")
    return tmp_path / "run" / "features"


@pytest.mark.medium
def test_stored_features_give_the_same_index(model: TwoTower, photos: Path, store: Path, tmp_path: Path) -> None:
    stored = find_stored_features(model, tmp_path / "run" / "best")
    report = build_index(model, photos, tmp_path / "index", stored=stored)
    assert (report.count, report.stored, report.reused) == (5, 4, 0)
    build_index(model, photos, tmp_path / "decoded")
    found, expected = Index.open(tmp_path / "index"), Index.open(tmp_path / "decoded")
    assert found.items == expected.items
    np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-6)
    assert build_index(model, photos, tmp_path / "index", stored=stored).reused == 5


@pytest.mark.medium
def test_an_image_that_changed_is_read(model: TwoTower, photos: Path, store: Path, tmp_path: Path) -> None:
    first, second = sorted(photos.iterdir())[:2]
    shutil.copyfile(second, first)
    stored = find_stored_features(model, tmp_path / "run" / "best")
    assert build_index(model, photos, tmp_path / "index", stored=stored).stored == 3
    vectors = Index.open(tmp_path / "index").vectors
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


@pytest.mark.medium
def test_images_and_store_may_move_together(model: TwoTower, photos: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("photos", "run"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    stored = find_stored_features(model, tmp_path / "elsewhere" / "run" / "best")
    report = build_index(model, tmp_path / "elsewhere" / "photos", tmp_path / "index", stored=stored)
    assert report.stored == 4


@pytest.mark.medium
def test_a_model_that_reads_no_images_knows_those_that_were_moved(
    model: TwoTower, photos: Path, store: Path, tmp_path: Path
) -> None:
    image = ImageEncoder(backbone=Precomputed(feature_dim=model.image.encoder.backbone.feature_dim), embed_dim=8)
    blind = TwoTower(Tower(image, GPO(input_dim=8, embed_dim=8)), model.text, SetMax()).eval()
    (photos / "photo_4.jpg").unlink()  # which the store lacks
    stored = StoredFeatures(blind, FeatureStore(store))
    build_index(blind, photos, tmp_path / "before", stored=stored)
    moved = photos.rename(tmp_path / "moved")
    assert build_index(blind, moved, tmp_path / "index", stored=stored).stored == 4
    one, other = Index.open(tmp_path / "before"), Index.open(tmp_path / "index")
    assert one.table.ids == other.table.ids
    np.testing.assert_array_equal(one.vectors, other.vectors)
    status = (moved / "photo_0.jpg").stat()
    path, now = moved / "photo_0.jpg", (status.st_mtime_ns, status.st_size)
    assert stored.find(path, *now) is not None
    assert stored.find(path, now[0], now[1] + 1) is None is stored.find(moved / "photo_9.jpg", *now)
    assert StoredFeatures(model, stored.store).find(path, *now) is None  # it reads the image


@pytest.mark.medium
def test_a_store_that_says_nothing_of_its_images_stands_for_none(
    model: TwoTower, photos: Path, store: Path, tmp_path: Path
) -> None:
    (store / SOURCES).write_text('{"id": "x", "path": "../..\n[]\nnull\n')
    stored = StoredFeatures(model, FeatureStore(store))
    assert build_index(model, photos, tmp_path / "index", stored=stored).stored == 0
    (store / SOURCES).unlink()
    assert read_sources(store) == {}


def test_a_line_that_was_cut_off_costs_itself_alone(model: TwoTower, photos: Path, store: Path) -> None:
    with (store / SOURCES).open("a") as file:
        file.write('{"id": "id of')
    path = photos / "photo_4.jpg"
    extract_features(model.image.encoder.backbone, [("last", path)], store, dtype="float32")
    assert len(read_sources(store)) == 5
    status = path.stat()
    assert StoredFeatures(model, FeatureStore(store)).find(path, status.st_mtime_ns, status.st_size) == 4


def test_a_store_of_another_encoder(photos: Path, store: Path, tmp_path: Path) -> None:
    other = two_tower(image_size=64)
    assert find_stored_features(other, tmp_path / "run" / "best") is None
    with pytest.raises(StoreError, match="features.*'resnet@"):
        find_stored_features(other, tmp_path / "run" / "best", store)
