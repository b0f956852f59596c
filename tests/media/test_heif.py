"""HEIC through the extra; AVIF through Pillow; both named where they cannot be read."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from openvse.errors import BadImageError
from openvse.media import names
from openvse.media.images import read_image
from openvse.media.listing import list_media

heif = pytest.importorskip("pillow_heif")


def half_red(size: tuple[int, int] = (64, 32)) -> Image.Image:
    """Return an image whose left half is red and whose right half is blue."""
    image = Image.new("RGB", size, "blue")
    image.paste("red", (0, 0, size[0] // 2, size[1]))
    return image


def as_heic(image: Image.Image, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    heif.from_pillow(image).save(file, quality=95, exif=exif.tobytes())
    return file.getvalue()


def test_a_heic_photograph_becomes_rgb(tmp_path):
    path = tmp_path / "photo.HEIC"
    path.write_bytes(as_heic(half_red()))
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", (64, 32))
    np.testing.assert_allclose(image.getpixel((8, 16)), (255, 0, 0), atol=12)
    np.testing.assert_allclose(image.getpixel((56, 16)), (0, 0, 255), atol=12)
    assert list_media(tmp_path).paths == [path]


def test_a_heic_photograph_is_turned_upright_once():
    image = read_image(as_heic(half_red(), orientation=6))  # to be turned clockwise: what was left is on top
    assert image.size == (32, 64)
    np.testing.assert_allclose(image.getpixel((16, 8)), (255, 0, 0), atol=12)


def test_a_truncated_heic_is_a_bad_image():
    with pytest.raises(BadImageError):
        read_image(as_heic(half_red((256, 256)))[:-200])


def test_too_many_pixels_are_refused_before_decoding():
    with pytest.raises(BadImageError, match="64.*32 pixels.*66"):
        read_image(as_heic(half_red()), max_pixels=100)


def test_without_the_decoder_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "photo.heic"
    path.write_bytes(as_heic(half_red()))
    monkeypatch.setattr("openvse.media.formats.is_installed", lambda package: False)
    with pytest.raises(BadImageError, match=r"HEIC.*pip install"):
        read_image(path)
    listing = list_media(tmp_path)
    assert listing.paths == [] and listing.left_out.describe().startswith("left out 1 HEIC: HEIC needs")


def test_avif_is_read_by_pillow():
    file = io.BytesIO()
    half_red().save(file, "AVIF", quality=90)
    np.testing.assert_allclose(read_image(file.getvalue()).getpixel((8, 16)), (255, 0, 0), atol=12)


def test_avif_names_what_it_needs(monkeypatch):
    file = io.BytesIO()
    half_red().save(file, "AVIF")
    monkeypatch.setattr("openvse.media.images._formats", lambda: ("JPEG", "PNG"))
    with pytest.raises(BadImageError, match=r"AVIF.*11\.3"):
        read_image(file.getvalue())


def test_names_of_heif_files():
    assert all(names.is_image(name) for name in ("a.heic", "a.HEIF", "a.hif"))
    assert not names.is_image(".heic")
