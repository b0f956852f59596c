"""Colours become sRGB by the profile of a file; a profile that cannot be used is passed over."""

import base64
import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from openvse.media import images
from openvse.media.images import full_size, read_image
from openvse.output.thumbnails import thumbnail_uri

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
# Colorants for the white point D50, as their profiles have them, and exponents of the curves.
P3 = ((0.51512, 0.2412, -0.00105), (0.29198, 0.69225, 0.04189), (0.1571, 0.06657, 0.78407))
ADOBE = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
PROPHOTO = ((0.7977, 0.28804, 0.0), (0.13519, 0.71188, 0.0), (0.03134, 0.00009, 0.82491))
SPACES = {"Display P3": (P3, None), "Adobe RGB": (ADOBE, 563 / 256), "ProPhoto": (PROPHOTO, 1.8)}
COLOURS = [(200, 70, 60), (80, 170, 90), (70, 100, 210), (128, 128, 128), (255, 255, 255)]


def fixed(*numbers: float) -> bytes:
    return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)


def icc(space: bytes, kind: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Return a profile of version 2."""
    tags = {
        b"desc": b"desc\0\0\0\0\0\0\0\2a\0" + bytes(78),
        b"wtpt": b"XYZ \0\0\0\0" + fixed(0.9642, 1, 0.8249),
        **tags,
    }
    at, table, data = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, value in tags.items():
        table += name + struct.pack(">II", at + len(data), len(value))
        data += value + bytes(-len(value) % 4)
    head = bytes(8) + b"\2\x10\0\0" + kind + space + connection + bytes(12) + b"acsp" + bytes(28)
    head += fixed(0.9642, 1, 0.8249) + bytes(48)
    return struct.pack(">I", at + len(data)) + (head + table + data)[4:]


def curve(gamma: float | None) -> bytes:
    if gamma is None:  # that of sRGB
        return b"para\0\0\0\0\0\3\0\0" + fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    return b"curv\0\0\0\0\0\0\0\1" + struct.pack(">H", round(gamma * 256)) + bytes(2)


def rgb_profile(name: str) -> bytes:
    colorants, gamma = SPACES[name]
    tags = {
        letter + b"XYZ": b"XYZ \0\0\0\0" + fixed(*values)
        for letter, values in zip((b"r", b"g", b"b"), colorants, strict=True)
    }
    tags |= {letter + b"TRC": curve(gamma) for letter in (b"r", b"g", b"b")}
    return icc(b"RGB ", b"mntr", b"XYZ ", tags)


def in_space(colour: tuple[int, int, int], name: str) -> tuple[int, ...]:
    """Return the numbers of a colour of sRGB in another space, by the definition of both."""
    value = np.array(colour) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4360, 0.2225, 0.0139], [0.3851, 0.7169, 0.0971], [0.1431, 0.0606, 0.7141]])
    colorants, gamma = SPACES[name]
    other = np.clip(linear @ to_xyz @ np.linalg.inv(np.array(colorants)), 0, 1)
    if gamma is None:
        coded = np.where(other <= 0.0031308, other * 12.92, 1.055 * other ** (1 / 2.4) - 0.055)
    else:
        coded = other ** (1 / gamma)
    return tuple(np.rint(coded * 255).astype(int).tolist())


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("name", [*SPACES])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", "AVIF"])
def test_colours_are_those_of_srgb(name, kind):
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind in ("JPEG", "AVIF") else {}
    for colour in COLOURS:
        numbers = in_space(colour, name)
        assert colour[0] == colour[1] or max(abs(a - b) for a, b in zip(numbers, colour, strict=True)) > 6
        image = Image.new("RGB", (32, 32), numbers)
        content = saved(image, kind, icc_profile=rgb_profile(name), **options)
        read = read_image(content)
        np.testing.assert_allclose(read.getpixel((9, 9)), colour, atol=6 if kind == "AVIF" else 4)
        assert "icc_profile" not in read.info


def test_a_thumbnail_is_srgb(tmp_path):
    image = Image.new("RGB", (640, 480), in_space((80, 170, 90), "ProPhoto"))
    image.save(tmp_path / "a.png", icc_profile=rgb_profile("ProPhoto"))
    shown = Image.open(io.BytesIO(base64.b64decode(thumbnail_uri(tmp_path / "a.png").partition(",")[2])))
    assert "icc_profile" not in shown.info
    np.testing.assert_allclose(shown.convert("RGB").getpixel((9, 9)), (80, 170, 90), atol=5)


def test_transparency_and_palettes_have_profiles_too():
    numbers, profile = in_space((80, 170, 90), "ProPhoto"), rgb_profile("ProPhoto")
    clear = Image.new("RGBA", (4, 4), (*numbers, 255))
    clear.putpixel((0, 0), (0, 0, 0, 0))
    for image in (clear, Image.new("RGB", (4, 4), numbers).quantize(2)):
        np.testing.assert_allclose(
            read_image(saved(image, icc_profile=profile)).getpixel((2, 2)), (80, 170, 90), atol=4
        )
    assert read_image(saved(clear, icc_profile=profile)).getpixel((0, 0)) == (255, 255, 255)


def test_grey_has_a_profile():
    profile = icc(b"GRAY", b"mntr", b"XYZ ", {b"kTRC": curve(1.0)})
    for mode in ("L", "LA", "I;16"):
        grey = Image.fromarray(np.full((4, 4), 55 * 257, np.uint16)) if mode == "I;16" else Image.new("L", (4, 4), 55)
        content = saved(grey.convert("LA") if mode == "LA" else grey, icc_profile=profile)
        np.testing.assert_allclose(read_image(content).getpixel((1, 1)), (128, 128, 128), atol=2)


def cmyk_profile(labs: dict[int, tuple[int, int, int]]) -> bytes:
    """Return a profile of a press; the colours of full inks are given by bits, cyan is 8 and black is 1."""
    ramp, matrix = bytes(range(256)), fixed(1, 0, 0, 0, 1, 0, 0, 0, 1)
    grid = b"".join(
        bytes([round(light * 2.55), a + 128, b + 128])
        for light, a, b in (labs.get(inks, (10, 0, 0)) for inks in range(16))
    )
    lut = b"mft1\0\0\0\0\4\3\2\0" + matrix + ramp * 4 + grid + ramp * 3
    return icc(b"CMYK", b"prtr", b"Lab ", {b"A2B0": lut})


@pytest.mark.parametrize("kind", ["TIFF", "JPEG"])
def test_inks_are_those_of_the_press(kind):
    profile = cmyk_profile({0: (100, 0, 0), 8: (55, -30, -45), 6: (48, 60, 40)})
    # CIELAB with D50 in sRGB
    for inks, colour in (
        ((0, 0, 0, 0), (255, 255, 255)),
        ((255, 0, 0, 0), (0, 146, 210)),
        ((0, 255, 255, 0), (207, 54, 51)),
    ):
        content = saved(Image.new("CMYK", (16, 16), inks), kind, icc_profile=profile)
        np.testing.assert_allclose(read_image(content).getpixel((8, 8)), colour, atol=4)


def test_a_smaller_jpeg_and_a_given_image_have_profiles():
    numbers = in_space((80, 170, 90), "Display P3")
    image = Image.new("RGB", (640, 480), numbers)
    small = read_image(saved(image, "JPEG", quality=100, icc_profile=rgb_profile("Display P3")), shorter_side=30)
    assert small.size == (80, 60) and full_size(small) == (640, 480)
    image.info["icc_profile"] = rgb_profile("Display P3")
    for read in (small, read_image(image)):
        np.testing.assert_allclose(read.getpixel((9, 9)), (80, 170, 90), atol=4)
    assert image.getpixel((9, 9)) == numbers


@pytest.mark.parametrize(
    "profile", [b"", b"no profile", bytes(1000), SRGB[:200], cmyk_profile({}), SRGB, rgb_profile("Display P3")[:-60]]
)
def test_a_profile_of_no_use_is_passed_over(profile):
    image = images.probe_image(1, (32, 32))
    np.testing.assert_array_equal(np.asarray(read_image(saved(image, icc_profile=profile))), np.asarray(image))


def test_srgb_costs_nothing():
    assert images._transform(SRGB, "RGB") is None
    assert images._transform(rgb_profile("Display P3"), "RGB") is not None
