"""read_image turns anything into upright RGB or a BadImageError; list_media lists them."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from openvse.errors import BadImageError, DataError
from openvse.media.images import read_image
from openvse.media.listing import list_media


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def gradient(height: int = 24, width: int = 32) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 8, columns * 6, rows + columns], axis=2).astype(np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_every_source_gives_the_same_pixels(tmp_path, kind):
    array = gradient()
    content = encode(Image.fromarray(array), kind, **({"lossless": True} if kind == "WEBP" else {}))
    path = tmp_path / "picture.bin"
    path.write_bytes(content)
    for source in (content, path, str(path), array, Image.fromarray(array)):
        image = read_image(source)
        assert image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), array)


def test_a_given_picture_is_copied():
    original = Image.fromarray(gradient())
    copy = read_image(original)
    copy.putpixel((0, 0), (255, 255, 255))
    assert original.getpixel((0, 0)) == (0, 0, 0)


def test_cmyk_jpeg_keeps_its_colours():
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    pixel = np.asarray(read_image(encode(red, "JPEG", quality=95)))[8, 8]
    assert pixel[0] > 240 and pixel[1] < 15 and pixel[2] < 15


def test_transparency_is_laid_on_white():
    rgba = np.zeros((4, 4, 4), np.uint8)
    rgba[:2] = (255, 0, 0, 255)
    expected = np.full((4, 4, 3), 255, np.uint8)
    expected[:2] = (255, 0, 0)
    np.testing.assert_array_equal(np.asarray(read_image(rgba)), expected)
    np.testing.assert_array_equal(np.asarray(read_image(encode(Image.fromarray(rgba)))), expected)
    grey_alpha = Image.merge("LA", [Image.new("L", (2, 2), 0), Image.new("L", (2, 2), 128)])
    assert read_image(encode(grey_alpha)).getpixel((0, 0)) == (127, 127, 127)


def test_palette_with_a_transparent_entry():
    image = Image.new("P", (4, 2), 0)
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putpixel((3, 1), 1)
    decoded = read_image(encode(image, transparency=0))
    assert decoded.getpixel((0, 0)) == (255, 255, 255)
    assert decoded.getpixel((3, 1)) == (200, 0, 0)
    assert read_image(encode(image)).getpixel((0, 0)) == (10, 20, 30)


def test_16_bit_grey_is_scaled_not_clipped():
    deep = np.array([[0, 256 * 100, 65535, 300]], np.uint16)
    decoded = np.asarray(read_image(encode(Image.fromarray(deep))))
    np.testing.assert_array_equal(decoded[0, :, 0], [0, 100, 255, 1])
    wide = Image.fromarray(deep.astype(np.int32))
    np.testing.assert_array_equal(np.asarray(read_image(wide))[0, :, 1], [0, 100, 255, 1])


def test_other_modes():
    assert read_image(Image.new("1", (2, 2), 1)).getpixel((0, 0)) == (255, 255, 255)
    assert read_image(Image.new("L", (2, 2), 7)).getpixel((1, 1)) == (7, 7, 7)
    assert read_image(np.full((3, 5, 1), 9, np.uint8)).size == (5, 3)
    with pytest.raises(BadImageError):
        read_image(Image.new("F", (2, 2), 0.5))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    upright = gradient()
    # How a camera stores the picture, by definition of the tag: the inverse of what a viewer must do.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    np.testing.assert_array_equal(np.asarray(read_image(content)), upright)


def test_damaged_exif_does_not_lose_the_picture():
    content = encode(Image.fromarray(gradient()), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff\x01")
    assert read_image(content).size == (32, 24)


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    content = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_image(content).getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello world, this is text", "not an image we read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is EPS: vector graphics"),
        (encode(Image.fromarray(gradient(200, 200)), "JPEG")[:900], "damaged"),
        (encode(Image.fromarray(gradient(200, 200)))[:300], "damaged"),
    ],
)
def test_bad_files_name_path_and_reason(tmp_path, content, reason):
    path = tmp_path / "bad.jpg"
    path.write_bytes(content)
    with pytest.raises(BadImageError, match=reason) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_svg_is_recognised(tmp_path):
    with pytest.raises(BadImageError, match="SVG.*PNG"):
        read_image(b'<?xml version="1.0"?><svg xmlns="x"/>')
    path = tmp_path / "drawing.svg"
    path.write_text("<!-- a long preamble -->" * 100)
    with pytest.raises(BadImageError, match="SVG"):
        read_image(path)


def test_a_pdf_is_named_whatever_its_name(tmp_path):
    path = tmp_path / "scan.jpg"
    path.write_bytes(b"%PDF-1.7 ...")
    with pytest.raises(BadImageError, match=r"scan\.jpg.*PDF"):
        read_image(path)


def test_what_the_file_system_refuses(tmp_path):
    with pytest.raises(BadImageError, match=r"none\.jpg"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(BadImageError):
        read_image(tmp_path)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 3), np.uint8)]
)
def test_unusable_arrays(array):
    with pytest.raises(BadImageError):
        read_image(array)


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_before_decoding(recwarn):
    with pytest.raises(BadImageError, match="10000.*10000 pixels.*80,000,000"):
        read_image(png_that_claims(10_000, 10_000))
    with pytest.raises(BadImageError, match="178,956,970"):
        read_image(png_that_claims(50_000, 50_000))
    with pytest.raises(BadImageError, match="32.*24 pixels.*100"):
        read_image(gradient(), max_pixels=100)
    assert not recwarn.list


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_lets_another_exception_out(data):
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"]))
    content = bytearray(encode(Image.fromarray(gradient()), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert read_image(bytes(content)).mode == "RGB"
    except BadImageError as error:
        assert "\n" not in str(error)


def test_listing_is_recursive_sorted_and_skips_hidden(tmp_path):
    for name in ("b.JPG", "a.png", "sub/c.webp", ".hidden/d.png", ".e.png", "notes.txt", "sub/.f.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert list_media(tmp_path).paths == [tmp_path / name for name in ("a.png", "b.JPG", "sub/c.webp")]
    assert list_media(str(tmp_path / "sub")).paths == [tmp_path / "sub" / "c.webp"]
    with pytest.raises(DataError, match="folder"):
        list_media(Path(tmp_path / "missing"))
