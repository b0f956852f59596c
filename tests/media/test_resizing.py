"""Resizing costs what the result costs, whatever the shape of an image, and ordinary images stay what they were."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Resampling

from openvse.media.resizing import cut_long, is_long, resized_middle, stretched

SHAPES = ((300, 200), (64, 96), (16, 1), (7, 111), (225, 224))
LONG_SHAPES = ((3000, 100), (100, 3000), (17, 1), (900, 50), (2, 400), (1, 3000))


def noise(size: tuple[int, int]) -> Image.Image:
    values = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3))
    return Image.fromarray(values.astype(np.uint8))


def whole(image: Image.Image, shortest: int, crop: tuple[int, int], *, rounds: bool) -> Image.Image:
    """The middle of the whole resized image."""
    new = [shortest * side // min(image.size) for side in image.size]
    free = [(side - part) / 2 for side, part in zip(new, crop, strict=True)]
    left, top = (round(each) if rounds else int(each // 1) for each in free)
    return image.resize(tuple(new), Resampling.BICUBIC).crop((left, top, left + crop[0], top + crop[1]))


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("crop", [(32, 32), (24, 31), (40, 40)])
def test_the_middle_is_that_of_the_whole_resized_image(crop: tuple[int, int], rounds: bool) -> None:
    for size in (*SHAPES, *LONG_SHAPES):
        image = noise(size)
        found = resized_middle(image, 32, crop, Resampling.BICUBIC, rounds=rounds)
        difference = np.abs(np.asarray(found, np.int16) - np.asarray(whole(image, 32, crop, rounds=rounds), np.int16))
        assert difference.max() <= (1 if is_long(image) else 0), size


def test_a_whole_image_is_resized_as_pillow_does() -> None:
    for size in (*SHAPES, *LONG_SHAPES):
        image = noise(size)
        found = np.asarray(stretched(image, (32, 40)), np.int16)
        difference = np.abs(found - np.asarray(image.resize((32, 40), Resampling.BICUBIC), np.int16))
        assert difference.max() <= (2 if is_long(image) else 0), size


def test_a_very_long_side_keeps_its_colours_in_order() -> None:
    ramp = np.linspace(0, 255, 200_000).astype(np.uint8)
    line = Image.fromarray(ramp[:, None])
    for image, resized in ((line, (3, 64)), (line.transpose(Image.Transpose.TRANSPOSE), (64, 3))):
        found = np.asarray(stretched(image, resized), np.float32)
        profile = found[:, 1] if resized[0] == 3 else found[1]
        np.testing.assert_allclose(profile, (np.arange(64) + 0.5) * 255 / 64, atol=1.5)


def test_a_long_image_is_cut_around_its_middle() -> None:
    image = noise((100, 4))
    np.testing.assert_array_equal(np.asarray(cut_long(image)), np.asarray(image)[:, 18:82])
    assert cut_long(image.transpose(Image.Transpose.ROTATE_90)).size == (4, 64)
    assert cut_long(noise((64, 4))).size == (64, 4)


# The growth of a process while it prepares lines of 65,000 pixels and more, in MB.
GROWTH = """
import resource
from PIL import Image
from openvse.runtime.model import Preprocessing
ways = [
    Preprocessing(shortest=224, crop=(224, 224)),
    Preprocessing(sizes=((224, 224),)),
    Preprocessing(sizes=((112, 112), (224, 224))),
    Preprocessing(sizes=((112, 112),), windows=((1, 1.0), (3, 0.5))),
]
for way in ways:
    way(Image.new("RGB", (300, 200)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for size in ((1, 65_000), (65_000, 1), (2, 1_000_000), (1_000_000, 2)):
    for way in ways:
        way(Image.new("RGB", size))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kB on Linux")
def test_a_line_costs_no_more_than_its_pixels() -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
