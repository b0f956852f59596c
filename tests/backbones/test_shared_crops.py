"""Windows that share one pass of the inner backbone: means of the cells under them, by area.

Ten crops: five windows, and the same five mirrored.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from openvse.backbones import Backbone, Crops, EfficientNetLite0, Frames, ResNet
from openvse.errors import RecipeError
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import image_encoder

TINY = {"pretrained": False, "image_size": 32}
WINDOWS = ((1, 1.0), (3, 0.5), (4, 0.3))


@pytest.fixture(scope="module")
def crops() -> Crops:
    torch.manual_seed(0)
    return Crops(backbone=partial(EfficientNetLite0, **TINY), windows=WINDOWS, shared=True).eval()


def slow(cells: torch.Tensor, box: list[float]) -> torch.Tensor:
    """Return the mean of a map ``[n, n, C]`` under a box, from the area that each cell has in it."""
    side = len(cells)
    left, top, right, bottom = (side * edge for edge in box)
    total, area = torch.zeros(cells.shape[2], dtype=torch.float64), 0.0
    for row in range(side):
        for column in range(side):
            high = min(bottom, row + 1) - max(top, row)
            wide = min(right, column + 1) - max(left, column)
            if high > 0 and wide > 0:
                total += high * wide * cells[row, column].double()
                area += high * wide
    assert area == pytest.approx((right - left) * (bottom - top), rel=1e-4)
    return total / area


def test_a_window_is_the_mean_of_the_cells_under_it(crops: Crops, make_photos) -> None:
    pixels = crops.collate([crops.read(path) for path in make_photos(2, size=(90, 50))])
    assert pixels.values.shape == (2, 3, 107, 107), "32 pixels are 0.3 of 107"
    found = crops(pixels)
    cells = crops.inner(pixels).local
    assert cells.shape == (2, 16, 1280) and found.local.shape == (2, 26, 1280)
    for item in range(2):
        for window, box in enumerate(found.boxes[item].tolist()):
            expected = slow(cells[item].view(4, 4, -1), box)
            torch.testing.assert_close(found.local[item, window].double(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.local[:, 0], cells.mean(dim=1))


@pytest.mark.medium
def test_boxes_are_those_of_windows_that_share_nothing(crops: Crops) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    alone = Crops(backbone=partial(EfficientNetLite0, **TINY), windows=WINDOWS).eval()
    found, expected = (each(each.collate([each.read(image)])).boxes for each in (crops, alone))
    assert found is not None and expected is not None and torch.equal(found, expected)


def test_it_sees_each_image_once_and_its_store_is_another(crops: Crops) -> None:
    assert crops.stored_images == 1
    assert crops.fingerprint == ("crops:efficientnet_lite0:random:32:1x1:1x1 of 1 + 3x3 of 0.5 + 4x4 of 0.3:shared")
    assert image_encoder("crops", shared=True).backbone.inner.image_size == 336, "the smallest has 112 pixels"


def test_a_resnet_may_be_shared_too() -> None:
    make = partial(ResNet, blocks=(1, 1, 1, 1), stem_dim=4, inner_dim=4, image_size=64)
    backbone = Crops(backbone=make, windows=((2, 0.5),), shared=True).eval()
    pixels = backbone.collate([backbone.read(np.random.default_rng(0).integers(0, 255, (70, 90, 3), np.uint8))])
    cells = backbone.inner(pixels).local.view(4, 4, -1)
    torch.testing.assert_close(backbone(pixels).local[0, 1], cells[:2, 2:].mean(dim=(0, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_it_trains_and_keeps_the_names_of_weights() -> None:
    plain = image_encoder("crops", backbone=TINY)
    encoder = image_encoder("crops", backbone=TINY | {"fine_tune": True}, shared=True, windows=[[2, 0.5]])
    assert list(plain.state_dict()) == list(encoder.state_dict())
    encoder(Inputs(torch.randn(1, 3, 64, 64), None)).local.pow(2).sum().backward()
    assert [name for name, weight in encoder.named_parameters() if weight.grad is None] == []


@pytest.mark.medium
def test_frames_of_a_clip_may_share_windows() -> None:
    make = partial(Crops, backbone=partial(EfficientNetLite0, **TINY), windows=((2, 0.5),), shared=True)
    frames = Frames(backbone=make, stored_frames=9).eval()
    clip = np.random.default_rng(0).integers(0, 255, (2, 20, 30, 3), np.uint8)
    found = frames(frames.collate([frames.read(clip)]))
    crops = frames.inner
    alone = crops(crops.collate([crops.preprocess(Image.fromarray(frame)) for frame in clip]))
    torch.testing.assert_close(found.local[0], alone.local.mean(dim=1), rtol=1e-4, atol=1e-5)


REFUSED = {
    "scales": partial(EfficientNetLite0, pretrained=False, scales=(32, 64)),
    "crop": partial(ResNet, blocks=(1, 1, 1, 1), fit="crop", stem_dim=4, inner_dim=4),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_backbones_without_cells_of_the_whole_image_are_refused(make: type[Backbone]) -> None:
    assert names(refusal(RecipeError, Crops, backbone=make, shared=True), "shared: true")


SMALL = partial(EfficientNetLite0, pretrained=False, image_size=32)
TEN = ((1, 0.875), (2, 0.875))


@pytest.mark.medium
def test_the_second_half_is_mirrored() -> None:
    torch.manual_seed(0)
    ten, five = (Crops(backbone=SMALL, windows=TEN, mirrored=mirrored).eval() for mirrored in (True, False))
    five.load_state_dict(ten.state_dict())
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pixels = ten.preprocess(image)
    assert pixels.shape[0] == 10
    torch.testing.assert_close(pixels[:5], five.preprocess(image))
    # The windows of the mirrored image are those of the image with left and right exchanged.
    flipped = five.preprocess(ImageOps.mirror(image))
    torch.testing.assert_close(pixels[5:], flipped[[0, 2, 1, 4, 3]])
    with torch.inference_mode():
        seen = ten(Inputs(pixels.unsqueeze(0), None))
    assert seen.local.shape[1] == 10
    assert torch.equal(seen.boxes[0, :5], seen.boxes[0, 5:])  # type: ignore[index]
    assert ten.fingerprint != five.fingerprint and ten.stored_images == 2 * five.stored_images


def test_mirrored_windows_cannot_share_a_pass() -> None:
    refusal(RecipeError, Crops, backbone=SMALL, windows=TEN, mirrored=True, shared=True)
