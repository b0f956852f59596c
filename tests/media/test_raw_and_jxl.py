"""HEIC, JPEG XL and raw files of cameras through their extras; AVIF through Pillow."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from openvse.errors import BadImageError
from openvse.media import names
from openvse.media.formats import size_of
from openvse.media.images import read_image
from openvse.media.listing import list_media
from openvse.media.videos import read_frames

heif = pytest.importorskip("pillow_heif")
jxl = pytest.importorskip("pillow_jxl")
pytest.importorskip("rawpy")


def half_red(size: tuple[int, int] = (64, 32)) -> Image.Image:
    image = Image.new("RGB", size, "blue")
    image.paste("red", (0, 0, size[0] // 2, size[1]))
    return image


def as_jxl(image: Image.Image, orientation: int = 1) -> bytes:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(file, "JXL", quality=95, exif=exif.tobytes() if orientation > 1 else None)
    return file.getvalue()


def as_dng(preview: Image.Image, orientation: int = 1) -> bytes:
    """Return a small raw file: a grey mosaic of 16 bits, and beside it a preview as JPEG."""
    jpeg = io.BytesIO()
    preview.save(jpeg, "JPEG", quality=95)
    side = 256
    raw = np.full((side, side), 2000, np.uint16).tobytes()

    def directory(at: int, entries: list[tuple[int, int, tuple[int, ...]]]) -> bytes:
        """Return a directory of TIFF that begins at a byte of the file, with its longer values behind it."""
        formats, behind = {1: "B", 2: "B", 3: "H", 4: "I", 5: "I"}, b""
        written, room = struct.pack("<H", len(entries)), at + 2 + 12 * len(entries) + 4
        for tag, kind, values in entries:
            packed = struct.pack(f"<{len(values)}{formats[kind]}", *values)
            if len(packed) > 4:
                place, behind = (struct.pack("<I", room + len(behind)), behind + packed + b"\0" * (len(packed) % 2))
            else:
                place = packed.ljust(4, b"\0")
            count = len(values) // 2 if kind == 5 else len(values)
            written += struct.pack("<HHI", tag, kind, count) + place
        return written + struct.pack("<I", 0) + behind

    def text(words: str) -> tuple[int, ...]:
        return tuple(words.encode() + b"\0")

    first, second, data = 8, 1024, 2048
    mosaic = [
        (254, 4, (0,)), (256, 4, (side,)), (257, 4, (side,)), (258, 3, (16,)), (259, 3, (1,)), (262, 3, (32803,)),
        (273, 4, (data,)), (277, 3, (1,)), (278, 4, (side,)), (279, 4, (len(raw),)), (33421, 3, (2, 2)),
        (33422, 1, (0, 1, 1, 2)), (50714, 3, (0,)), (50717, 4, (4095,)),
    ]  # fmt: skip
    shown = [
        (254, 4, (1,)), (256, 4, (preview.width,)), (257, 4, (preview.height,)), (258, 3, (8, 8, 8)), (259, 3, (7,)),
        (262, 3, (6,)), (271, 2, text("Maker")), (272, 2, text("Maker X1")), (273, 4, (data + len(raw),)),
        (274, 3, (orientation,)), (277, 3, (3,)), (278, 4, (preview.height,)), (279, 4, (jpeg.tell(),)),
        (330, 4, (second,)), (50706, 1, (1, 4, 0, 0)), (50708, 2, text("Maker X1")),
        (50721, 5, sum(((number, 1) for number in (1, 0, 0, 0, 1, 0, 0, 0, 1)), ())),
    ]  # fmt: skip
    head = b"II*\0" + struct.pack("<I", first)
    start = (head + directory(first, shown)).ljust(second, b"\0") + directory(second, mosaic)
    return start.ljust(data, b"\0") + raw + jpeg.getvalue()


def test_jpeg_xl_becomes_rgb(tmp_path: Path):
    path = tmp_path / "photo.jxl"
    path.write_bytes(as_jxl(half_red()))
    for image in (read_image(path), *read_frames(path)):
        assert (image.mode, image.size) == ("RGB", (64, 32))
        np.testing.assert_allclose(image.getpixel((8, 16)), (255, 0, 0), atol=12)
    assert list_media(tmp_path).paths == [path]


@pytest.mark.parametrize("size", [(64, 32), (256, 256), (257, 256), (600, 400), (1000, 7), (3, 5000)])
def test_the_size_of_jpeg_xl_is_read_before_decoding(size: tuple[int, int]):
    for orientation in (1, 6):  # the latter in a container
        content = as_jxl(half_red(size), orientation)
        assert size_of(content) == size
        with pytest.raises(BadImageError, match=r"\d+ x \d+.* 6 "):
            read_image(content, max_pixels=10)


def test_exif_does_not_turn_jpeg_xl():
    """The codestream says how it is turned, and the decoder has done that (ISO/IEC 18181-2)."""
    assert read_image(as_jxl(half_red(), orientation=6)).size == (64, 32)


def test_a_damaged_jpeg_xl_is_a_bad_image():
    content = as_jxl(half_red((256, 256)), 6)
    for damaged in (content[:5], content[:14], content[:60], content[:-40]):
        with pytest.raises(BadImageError):
            read_image(damaged)


@pytest.mark.parametrize(("orientation", "size"), [(1, (64, 32)), (6, (32, 64)), (8, (32, 64)), (3, (64, 32))])
def test_a_raw_file_is_its_preview_turned_upright(tmp_path: Path, orientation: int, size: tuple[int, int]):
    path = tmp_path / "photo.DNG"
    path.write_bytes(as_dng(half_red(), orientation))
    for image in (read_image(path), *read_frames(path)):
        assert image.size == size
    red = {1: (8, 16), 6: (16, 8), 8: (16, 56), 3: (56, 16)}[orientation]
    np.testing.assert_allclose(read_image(path).getpixel(red), (254, 0, 0), atol=12)
    assert list_media(tmp_path).paths == [path]


def test_a_raw_file_without_a_preview_names_the_way_out(tmp_path: Path):
    path = tmp_path / "photo.nef"
    path.write_bytes(b"II*\0" + b"\0" * 3000)
    with pytest.raises(BadImageError, match=r"photo\.nef.*JPEG"):
        read_image(path)


def test_what_is_not_read_is_counted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a.tga", "b.ico", "c.jxl", "d.cr3", "e.arw"):
        (tmp_path / name).write_bytes(b"?")
    assert list_media(tmp_path).left_out.counts() == "1 TGA, 1 ICO"
    monkeypatch.setattr("openvse.media.formats.is_installed", lambda package: False)
    assert list_media(tmp_path).left_out.counts() == "2 camera raw, 1 TGA, 1 ICO, 1 JPEG XL"
    for name, package in (("c.jxl", "pillow-jxl-plugin"), ("d.cr3", "rawpy")):
        (tmp_path / name).write_bytes(as_jxl(half_red()))
        with pytest.raises(BadImageError, match=package):
            read_image(tmp_path / name)


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
    with pytest.raises(BadImageError, match="64.*32.*66"):
        read_image(as_heic(half_red()), max_pixels=100)


def test_without_the_decoder_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "photo.heic"
    path.write_bytes(as_heic(half_red()))
    monkeypatch.setattr("openvse.media.formats.is_installed", lambda package: False)
    with pytest.raises(BadImageError, match=r"HEIC.*pip install"):
        read_image(path)
    listing = list_media(tmp_path)
    assert listing.paths == [] and "1 HEIC" in listing.left_out.describe()


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
