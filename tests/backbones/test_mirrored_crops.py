"""Ten crops: five windows, and the same five mirrored."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from openvse.backbones import Crops, EfficientNetLite0
from openvse.errors import RecipeError
from openvse.types import Inputs
from tests.naming import refusal

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
