"""Images whose file has changed since their features were stored are named, wherever the store is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from openvse.backbones import Backbone
from openvse.batches.loaders import with_features
from openvse.corpus.corpus import Record, build_corpus
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from tests.features.test_extract import TinyBackbone

NAMES = tuple(f"{number}.png" for number in range(4))


@pytest.fixture
def images(tmp_path: Path) -> list[tuple[str, Path]]:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(tmp_path / "images" / name)
    return [(name, tmp_path / "images" / name) for name in NAMES]


@pytest.fixture
def backbone() -> Backbone:
    return TinyBackbone()


def test_changed_images_are_named(images: list[tuple[str, Path]], backbone: Backbone, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert extract_features(backbone, images, store).stale == ""
    assert extract_features(backbone, images, store).stale == ""
    Image.new("RGB", (8, 8), (0, 99, 0)).save(images[2][1])
    os.utime(images[2][1], ns=(1, 1))  # whatever its size is now
    report = extract_features(backbone, images, store)
    assert report.stale.startswith("1 image(s) have changed") and "(first: 2.png)" in report.stale
    corpus = build_corpus("some", [Record(name, path, ["a dot"]) for name, path in images])
    assert with_features(corpus, FeatureStore(store)).problems == (report.stale,)


def test_a_copy_of_the_images_is_the_same_and_another_size_is_not(
    images: list[tuple[str, Path]], backbone: Backbone, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    extract_features(backbone, images, store)
    shutil.copytree(tmp_path / "images", tmp_path / "copy", copy_function=shutil.copyfile)
    copied = [(name, tmp_path / "copy" / name) for name, _ in images]
    for _, path in copied:
        os.utime(path, ns=(5, 5))
    assert FeatureStore(store).stale(copied) == ""
    Image.new("RGB", (300, 200), (0, 99, 0)).save(copied[1][1])
    assert "1 image(s)" in FeatureStore(store).stale(copied)
    copied[1][1].unlink()  # features without their images
    assert FeatureStore(store).stale(copied) == ""
