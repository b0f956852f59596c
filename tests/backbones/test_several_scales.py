"""Several sizes of one image: the cells of all maps in one set."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openvse.backbones import EfficientNetLite0
from openvse.errors import RecipeError
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import image_encoder


@pytest.mark.medium
def test_each_map_is_that_of_its_own_size(make_photos) -> None:
    photos = make_photos(2)
    both = EfficientNetLite0(scales=(64, 128)).eval()
    found = both(both.collate([both.read(path) for path in photos]))
    assert found.local.shape == (2, 4 + 16, 1280) and bool(found.mask.all())
    for size, place in ((64, slice(0, 4)), (128, slice(4, 20))):
        one = EfficientNetLite0(image_size=size).eval()
        alone = one(one.collate([one.read(path) for path in photos]))
        torch.testing.assert_close(found.local[:, place], alone.local, rtol=1e-4, atol=1e-4)


def test_boxes_are_the_cells() -> None:
    backbone = EfficientNetLite0(scales=(96, 32), pretrained=False).eval()
    boxes = backbone(Inputs(torch.zeros(2, 3, 128, 96), None)).boxes
    assert boxes is not None and boxes.shape == (2, 10, 4)
    torch.testing.assert_close(boxes[0, 1], torch.tensor([1 / 3, 0, 2 / 3, 1 / 3]))
    torch.testing.assert_close(boxes[1, 3], torch.tensor([0, 1 / 3, 1 / 3, 2 / 3]))
    assert boxes[0, 9].tolist() == [0, 0, 1, 1]


@pytest.mark.medium
def test_the_store_knows_the_scales_and_holds_boxes(tmp_path: Path, make_photos) -> None:
    backbone = image_encoder("efficientnet_lite0", scales=[32, 64], pretrained=False).eval().backbone
    assert backbone.fingerprint == "efficientnet_lite0:random:32+64:1x1+2x2"
    assert backbone.gives_boxes and not backbone.covers_image and not backbone.any_size
    extract_features(backbone, [(path.name, path) for path in make_photos(2)], tmp_path / "store")
    store = FeatureStore(tmp_path / "store", backbone.fingerprint)
    assert store.has_boxes and store.boxes(store.positions(["photo_0.jpg"])).shape == (1, 5, 4)


@pytest.mark.medium
def test_it_trains_at_all_scales() -> None:
    backbone = EfficientNetLite0(scales=(32, 64), pretrained=False, fine_tune=True).train()
    backbone(Inputs(torch.randn(1, 3, 96, 64), None)).local.pow(2).sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scales": (64, 64)}, ["scales", 64, 64]),
        ({"scales": ()}, ["scales", "()"]),
        ({"scales": (64,), "image_size": 64}, ["image_size", 64]),
        ({"scales": (64, 16)}, ["scales", 16, 32]),
    ],
)
def test_scales_that_make_no_sense_are_refused(options, named: list[object]) -> None:
    assert names(refusal(RecipeError, EfficientNetLite0, pretrained=False, **options), *named)
