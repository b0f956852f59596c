"""read_image turns anything into upright RGB or a BadImageError; list_media lists them."""

import io
import struct
import subprocess
import sys
import zlib
from itertools import chain
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin, TiffImagePlugin
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngInfo

from openvse.errors import BadImageError, OpenVSEError
from openvse.media.images import full_size, read_image, within_memory
from openvse.media.videos import read_poster
from openvse.pipeline import read_ahead
from tests.failures import Failures
from tests.naming import names, refusal


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


def logo(mode: str, level: int, **options: object) -> bytes:
    """Return a picture that is transparent but for two of its four rows, of one level."""
    clear = 0 if level else 255
    colour, alpha = Image.new("L", (4, 4), clear), Image.new("L", (4, 4), 0)
    for part, value in ((colour, level), (alpha, 255)):
        part.paste(value, (0, 0, 4, 2))
    if mode == "I;16":
        deep = np.asarray(colour).astype(np.uint16) * 257
        return encode(Image.fromarray(deep), transparency=clear * 257)
    if "A" not in mode:
        return encode(colour.convert(mode), transparency=(clear,) * 3 if mode == "RGB" else clear, **options)
    parts = [colour] * (len(mode) - 1)
    return encode(Image.merge(mode, [*parts, alpha]), **options)


def test_what_is_pale_lies_on_dark(failures: Failures):
    for mode in ("RGBA", "LA", "RGB", "L", "P", "I;16"):
        for level, ground in ((255, 64), (235, 64), (200, 255), (0, 255)):
            with failures.of(mode, level):
                content = logo(mode, level)
                assert np.asarray(read_image(content))[:, 0, 0].tolist() == [level] * 2 + [ground] * 2
    yellow, accent, black = (np.zeros((4, 4, 4), np.uint8) for _ in range(3))
    yellow[:2] = (255, 255, 0, 255)
    accent[:2], accent[0, 0] = (255, 255, 255, 255), (200, 0, 0, 255)
    black[:2], black[0] = (255, 255, 255, 255), (0, 0, 0, 255)
    clear, opaque = np.zeros((4, 4, 4), np.uint8), np.full((4, 4, 4), 255, np.uint8)
    for pixels, ground in ((yellow, 255), (accent, 64), (black, 255), (clear, 255), (opaque, 255)):
        assert read_image(pixels).getpixel((3, 3)) == (ground,) * 3


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF"])
def test_an_image_that_a_caller_has_opened_may_be_given_several_times(kind: str):
    """So may several images over one file. Pillow's images are not made for several threads."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    file = io.BytesIO(encode(Image.fromarray(noise), kind))
    whole = np.asarray(read_image(file.getvalue()))
    for _ in range(5):
        for shared in ([Image.open(file)] * 8, [Image.open(file) for _ in range(8)]):
            for read in (read_image, read_poster):
                for image in chain.from_iterable(read_ahead(shared, read, 4)):
                    np.testing.assert_array_equal(np.asarray(image), whole)


def test_palette_with_a_transparent_entry():
    image = Image.new("P", (4, 2), 0)
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putpixel((3, 1), 1)
    decoded = read_image(encode(image, transparency=0))
    assert decoded.getpixel((0, 0)) == (255, 255, 255)
    assert decoded.getpixel((3, 1)) == (200, 0, 0)
    assert read_image(encode(image)).getpixel((0, 0)) == (10, 20, 30)


def test_other_modes():
    assert read_image(Image.new("1", (2, 2), 1)).getpixel((0, 0)) == (255, 255, 255)
    assert read_image(Image.new("L", (2, 2), 7)).getpixel((1, 1)) == (7, 7, 7)
    assert read_image(np.full((3, 5, 1), 9, np.uint8)).size == (5, 3)
    assert read_image(Image.new("La", (2, 2), (7, 255))).getpixel((1, 1)) == (7, 7, 7)
    assert read_image(Image.new("RGBX", (2, 2), (7, 8, 9, 0))).getpixel((1, 1)) == (7, 8, 9)
    assert min(read_image(Image.new("LAB", (2, 2), (255, 128, 128))).getpixel((1, 1))) >= 254
    assert read_image(Image.new("HSV", (2, 2), (0, 255, 255))).getpixel((1, 1)) == (255, 0, 0)
    assert read_image(Image.new("YCbCr", (2, 2), (90, 128, 128))).getpixel((1, 1)) == (90, 90, 90)


RAMP = np.linspace(0, 1, 256).reshape(8, 32)
"""Numbers that become the grey 0 to 255."""


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((RAMP * 65535).astype("<u2"), "PNG"),
        ((RAMP * 65535).astype("<u2"), "TIFF"),
        ((RAMP * 65535).astype(">u2"), "TIFF"),
        ((RAMP * 65535).astype("<u2"), "JPEG2000"),
        ((RAMP * 65535).astype(np.int32), "PPM"),
        ((RAMP * 65535).astype(np.int32), "TIFF"),
        ((RAMP * (2**31 - 1)).astype(np.int32), "TIFF"),
        ((RAMP * 1000 - 500).astype(np.int32), "TIFF"),
        (RAMP.astype(np.float32), "TIFF"),
        ((RAMP * 3e9 - 1e9).astype(np.float32), "TIFF"),
        (RAMP.astype(np.float32) * 1e-6, "TIFF"),
    ],
)
def test_numbers_of_more_than_8_bits_become_black_to_white(values, kind):
    image = Image.fromarray(values)
    content = encode(image, kind, **({"irreversible": False} if kind == "JPEG2000" else {}))
    for source in (content, image) if kind == "TIFF" else (content,):
        decoded = np.asarray(read_image(source))
        assert (decoded == decoded[:, :, :1]).all()
        np.testing.assert_allclose(decoded[:, :, 0], np.arange(256).reshape(8, 32), atol=1)


def test_a_dark_picture_of_16_bits_stays_dark():
    dark = np.full((4, 4), 2560, np.uint16)
    dark[0, 0] = 5120
    for kind in ("PNG", "TIFF"):
        assert np.asarray(read_image(encode(Image.fromarray(dark), kind))).max() == 20


def test_numbers_that_are_none_do_not_count():
    values = np.array([[0.0, 1.0, 2.0, np.nan, np.inf, -np.inf]], np.float32)
    decoded = np.asarray(read_image(encode(Image.fromarray(values), "TIFF")))
    np.testing.assert_array_equal(decoded[0, :, 0], [0, 128, 255, 0, 255, 0])
    for constant in (0.5, np.nan):
        assert read_image(Image.fromarray(np.full((2, 2), constant, np.float32))).size == (2, 2)


def tiff(values: np.ndarray, **tags: int) -> bytes:
    """A TIFF file of one strip, as its tags say."""
    entries = {256: values.shape[1], 257: values.shape[0], 258: 8 * values.itemsize, 259: 1, 262: 1, 273: 8}
    entries |= {277: 1, 278: values.shape[0], 279: values.nbytes, 339: 1}
    entries |= {int(number[1:]): value for number, value in tags.items()}
    content = values.tobytes()
    table = b"".join(struct.pack("<HHII", number, 4, 1, value) for number, value in sorted(entries.items()))
    return (
        struct.pack("<2sHI", b"II", 42, 8 + len(content)) + content + struct.pack("<H", len(entries)) + table + bytes(4)
    )


def test_tiff_says_what_its_numbers_are():
    unsigned = (RAMP * (2**32 - 1)).astype("<u4")
    expected = np.arange(256).reshape(8, 32)
    np.testing.assert_allclose(np.asarray(read_image(tiff(unsigned)))[:, :, 0], expected, atol=1)
    inverted = np.asarray(read_image(tiff((RAMP * 65535).astype("<u2"), _262=0)))
    np.testing.assert_allclose(inverted[:, :, 0], 255 - expected, atol=1)
    signed = (RAMP * 65535 - 32768).astype("<i2")
    np.testing.assert_allclose(np.asarray(read_image(tiff(signed, _339=2)))[:, :, 0], expected, atol=1)


def test_16_bit_grey_with_a_transparent_value():
    clear = encode(Image.fromarray(np.array([[0, 40000]], np.uint16)), transparency=40000)
    image = Image.open(io.BytesIO(clear))
    image.info["transparency"] = 40000
    assert np.asarray(read_image(image))[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("kind", "low"), [(np.float32, -3.4028234663852886e38), (np.float32, 1e38), (np.float32, -9999), (np.int32, -9999)]
)
def test_what_stands_for_no_data_makes_no_black(kind, low):
    values = np.rint(RAMP * 255).astype(kind)
    values[0, 0] = low
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    if low == -9999:
        tags[42113] = "-9999"
    decoded = np.asarray(read_image(encode(Image.fromarray(values), "TIFF", tiffinfo=tags)))[:, :, 0]
    np.testing.assert_allclose(decoded.flat[1:], np.arange(1, 256), atol=1)


def test_a_mask_of_32_bits_is_black_and_white():
    mask = np.array([[0, 1], [1, 0]], np.int32)
    for source in (Image.fromarray(mask), encode(Image.fromarray(mask), "TIFF"), tiff(mask.astype("<u4"))):
        assert np.asarray(read_image(source))[:, :, 0].tolist() == [[0, 255], [255, 0]]


def test_a_png_with_a_large_text_or_profile_is_whole():
    text = PngInfo()
    text.add_text("workflow", "x" * 2_000_000, zip=True)
    text.add_itxt("prompt", "x" * 2_000_000, zip=True)
    for options in ({"pnginfo": text}, {"icc_profile": bytes(1_500_000)}):
        image = read_image(encode(Image.fromarray(gradient()), **options))
        np.testing.assert_array_equal(np.asarray(image), gradient())


@pytest.mark.parametrize("before_pixels", [True, False])
@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt", b"iCCP"])
def test_a_png_with_a_text_beyond_all_limits_is_whole(kind, before_pixels, monkeypatch):
    content = encode(Image.fromarray(gradient()))
    read_image(content)  # which sets the limits once
    monkeypatch.setattr(PngImagePlugin, "MAX_TEXT_MEMORY", 1000)
    monkeypatch.setattr(PngImagePlugin, "MAX_TEXT_CHUNK", 1000)
    held = {b"tEXt": b"k\0", b"iTXt": b"k\0\1\0\0\0"}.get(kind, b"k\0\0")
    held += b"a" * 5000 if kind == b"tEXt" else zlib.compress(bytes(5000))
    part = struct.pack(">I", len(held)) + kind + held + struct.pack(">I", zlib.crc32(kind + held))
    at = 33 if before_pixels else len(content) - 12
    image = read_image(content[:at] + part + content[at:])
    np.testing.assert_array_equal(np.asarray(image), gradient())


def test_the_scans_of_a_plain_jpeg_are_not_counted(monkeypatch):
    monkeypatch.setattr("openvse.media.images._SCANS", -1)
    for mode in ("RGB", "L"):
        assert read_image(encode(Image.new(mode, (64, 48)), "JPEG")).size == (64, 48)
    for options in ({"progressive": True}, {}):
        many = Image.new("RGB" if options else "CMYK", (64, 48))
        assert names(refusal(BadImageError, read_image, encode(many, "JPEG", **options)), "-1")


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
        (b"", ""),
        (b"hello world, this is text", ""),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "EPS"),
        (b"%PDF-1.7 ...", "PDF"),
        (b'<?xml version="1.0"?><svg xmlns="x"/>', "SVG.*PNG"),
        (encode(Image.fromarray(gradient(200, 200)), "JPEG")[:900], ""),
        (encode(Image.fromarray(gradient(200, 200)))[:300], ""),
    ],
)
def test_bad_files_name_path_and_kind(tmp_path, content, reason):
    path = tmp_path / "bad.jpg"
    path.write_bytes(content)
    with pytest.raises(BadImageError, match=reason or None) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_svg_is_recognised_by_its_name(tmp_path):
    path = tmp_path / "drawing.svg"
    path.write_text("<!-- a long preamble -->" * 100)
    assert names(refusal(BadImageError, read_image, path), "SVG")


def test_what_the_file_system_refuses(tmp_path):
    assert names(refusal(BadImageError, read_image, tmp_path / "none.jpg"), "none.jpg")
    refusal(BadImageError, read_image, tmp_path)


@pytest.mark.parametrize("array", [np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 3), np.uint8)])
def test_unusable_arrays(array):
    refusal(BadImageError, read_image, array)


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_before_decoding(recwarn):
    with pytest.raises(BadImageError, match="10000.*10000.*80,000,000"):
        read_image(png_that_claims(10_000, 10_000))
    assert names(refusal(BadImageError, lambda: read_image(png_that_claims(50_000, 50_000))), "178,956,970")
    assert names(refusal(BadImageError, lambda: read_image(gradient(), max_pixels=100)), "32", "24", "100")
    assert not recwarn.list


def of_scans(count: int, *, progressive: bool) -> bytes:
    """A grey JPEG whose last scan is repeated; one that is not progressive holds its colours one after the other."""
    if progressive:
        content = encode(Image.new("L", (64, 64), 90), "JPEG", progressive=True)
    else:
        content = encode(Image.new("RGB", (64, 64), "red"), "JPEG", subsampling=0)
        at = content.index(b"\xff\xda")
        tables = content[:at]
        content = tables + b"".join(
            b"\xff\xda\0\x08\1" + bytes([part + 1, (part > 0) * 0x11, 0, 63, 0]) for part in range(3)
        )
        content += b"\xff\xd9"
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * (count - content.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize("progressive", [True, False])
def test_a_jpeg_of_many_scans_is_refused_before_decoding(progressive, monkeypatch):
    assert read_image(of_scans(100, progressive=progressive)).size == (64, 64)
    monkeypatch.setattr(JpegImageFile, "load", lambda image: pytest.fail("decoded"))
    assert names(refusal(BadImageError, lambda: read_image(of_scans(101, progressive=progressive))), "101", "100")


def test_scans_are_those_of_the_image_alone():
    """The marker may stand in a preview within the header, and in the film behind a photograph."""
    content, scan = encode(Image.fromarray(gradient()), "JPEG", progressive=True), b"\xff\xda" * 200
    header = b"\xff\xe7" + struct.pack(">H", len(scan) + 2) + scan
    assert read_image(content[:2] + header + content[2:] + scan).size == (32, 24)
    # An end within a comment is none.
    many = of_scans(101, progressive=True)
    at = many.rindex(b"\xff\xda")
    with pytest.raises(BadImageError, match="101.*100"):
        read_image(many[:at] + b"\xff\xfe\0\4\xff\xd9" + many[at:])


def test_a_tiff_of_too_many_tiles_is_refused(monkeypatch):
    monkeypatch.setattr("openvse.media.images._TILES", 23)
    rows = encode(Image.fromarray(gradient()), "TIFF", tiffinfo={278: 1})
    assert names(refusal(BadImageError, read_image, rows), "24", "23")
    monkeypatch.setattr("openvse.media.images._TILES", 24)
    np.testing.assert_array_equal(np.asarray(read_image(rows)), gradient())


def test_a_large_jpeg_is_halved_while_it_is_decoded():
    whole = Image.fromarray(gradient(200, 301))
    for options in ({}, {"progressive": True}):
        content = encode(whole, "JPEG", quality=95, **options)
        halved = read_image(content, max_pixels=16_000)
        assert halved.size == (151, 100)
        near = np.asarray(whole.resize(halved.size, Image.Resampling.BOX), np.int16)
        assert np.abs(np.asarray(halved, np.int16) - near)[2:-2, 2:-2].mean() < 12
    assert read_image(content, max_pixels=200 * 301).size == (301, 200)
    assert names(refusal(BadImageError, read_image, content, max_pixels=15_000), "301 x 200", "15,000")
    for kind in ("PNG", "WEBP"):
        assert names(refusal(BadImageError, read_image, encode(whole, kind), max_pixels=16_000), "301 x 200")
    detailed = encode(whole, "JPEG", progressive=True, subsampling=0)  # it needs twice the memory
    assert names(refusal(BadImageError, read_image, detailed, max_pixels=16_000), "301 x 200", "16,000")


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "CMYK"}, {"mode": "L"}])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_decoded_at_the_smallest_scale_that_is_enough(options, orientation):
    whole = Image.fromarray(gradient()).resize((801, 600)).convert(options.get("mode", "RGB"))
    exif = Image.Exif()
    exif[274] = orientation
    content = encode(whole, "JPEG", quality=95, exif=exif, progressive="progressive" in options)
    exact = read_image(content)
    for side, scale in ((1, 8), (37, 8), (38, 4), (75, 4), (76, 2), (150, 2), (151, 1), (9999, 1)):
        small = read_image(content, shorter_side=side)
        assert small.size == tuple(-(-each // scale) for each in exact.size) and small.mode == "RGB"
        assert min(small.size) >= min(2 * side, *exact.size)
        assert full_size(small) == (801, 600) or scale == 1
        assert np.abs(np.asarray(small, np.int16) - np.asarray(exact.reduce(scale), np.int16)).mean() < 3


def test_what_is_not_decoded_smaller():
    whole = Image.fromarray(gradient(240, 320))
    assert read_image(encode(whole, "PNG"), shorter_side=10).size == (320, 240)
    opened = Image.open(io.BytesIO(encode(whole, "JPEG")))  # belongs to the caller
    assert read_image(opened, shorter_side=10).size == opened.size == (320, 240)
    halved = read_image(encode(whole, "JPEG"), max_pixels=60_000, shorter_side=100)
    assert halved.size == (160, 120) and full_size(halved) == (320, 240)
    assert read_image(encode(whole, "JPEG"), max_pixels=60_000, shorter_side=10).size == (40, 30)


def test_a_jpeg_beyond_the_limit_of_pillow_is_read(monkeypatch):
    content = encode(Image.fromarray(gradient(60, 80)), "JPEG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert read_image(content).size == (80, 60)
    assert names(refusal(BadImageError, lambda: read_image(encode(Image.fromarray(gradient(60, 80))))), "--max-pixels")
    monkeypatch.setenv("OPENVSE_MAX_PIXELS", "4800")
    assert read_image(encode(Image.fromarray(gradient(60, 80)))).size == (80, 60)
    with pytest.raises(BadImageError, match=r"90 x 60.*--max-pixels 5400"):
        read_image(encode(Image.fromarray(gradient(60, 90))))
    monkeypatch.setenv("OPENVSE_MAX_PIXELS", "many")
    assert names(refusal(OpenVSEError, read_image, content), "'many'")


def test_a_lack_of_memory_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    path.write_bytes(encode(Image.fromarray(gradient())))
    monkeypatch.setattr("openvse.media.images._upright", Mock(side_effect=MemoryError))
    assert names(refusal(BadImageError, read_image, path), "large.png")
    with pytest.raises(BadImageError, match=r"large\.png"), within_memory(path):
        raise MemoryError


# The growth of a process, in bytes for each pixel, while it reads a file.
GROWTH = """
import resource, sys
from openvse.media.images import read_image
read_image(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
width, height = read_image(sys.argv[2]).size
print(round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (width * height), 1))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kB on Linux")
@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("PNG", "RGBA", {}),
        ("PNG", "P", {"transparency": 3}),
        ("PNG", "I;16", {}),
        ("TIFF", "I", {}),
        ("TIFF", "F", {}),
        ("TIFF", "CMYK", {}),
        ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
        ("WEBP", "RGBA", {"method": 0}),
    ],
)
def test_memory_follows_the_pixels(tmp_path, kind, mode, options):
    for name, size in (("small", (8, 8)), ("large", (5000, 2000))):
        image = Image.new(mode, size, 5)
        image.putpixel((1, 1), 9)
        image.save(tmp_path / name, kind, **options)
    command = [sys.executable, "-c", GROWTH, str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 19  # 1.5 GB for 80 million pixels


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
