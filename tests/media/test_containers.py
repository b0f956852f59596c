"""Facts that a container keeps apart: behind the pixels, compressed, or in several parts."""

import io
import struct
import zlib
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from openvse.media import jxl
from openvse.media.headers import unread_facts
from photographs import bag, exif_of, jpeg, read_header, xmp_packet
from tests.failures import Failures
from tests.naming import names

brotli = pytest.importorskip("brotli")

EXIF = exif_of("2018:01:02 03:04:05")
EXIF[ExifTags.Base.ImageDescription] = "A lighthouse"
BLOCK = EXIF.tobytes().removeprefix(b"Exif\0\0")
XMP = xmp_packet("", bag("dc:subject", "kumquat"))
DATED, WORDS = {"taken": "2018-01-02T03:04:05", "description": "A lighthouse"}, {"keywords": ["kumquat"]}
START = b"\0\0\0\x0cJXL \r\n\x87\n"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(*behind: bytes, frames: int = 1) -> bytes:
    """Return a PNG of frames with chunks behind all pixels."""
    file, pictures = io.BytesIO(), [Image.new("RGB", (8, 8), (each * 9, 0, 0)) for each in range(frames)]
    pictures[0].save(file, "PNG", save_all=frames > 1, append_images=pictures[1:])
    content = file.getvalue()
    end = content.rindex(b"IEND") - 4
    return content[:end] + b"".join(behind) + content[end:]


def profile(name: str, content: bytes) -> bytes:
    """Return a profile in digits, as ImageMagick writes it."""
    text = f"\n{name}\n{len(content):8}\n{content.hex()}\n".encode()
    return chunk(b"zTXt", f"Raw profile type {name}".encode() + b"\0\0" + zlib.compress(text))


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content) + 8) + kind + content


def brob(kind: bytes, content: bytes) -> bytes:
    return box(b"brob", kind + brotli.compress(content))


def extended(rest: bytes, *, part: int = 60, mentioned: str = "AB" * 16, skip: int = -1) -> bytes:
    """Return a JPEG whose XMP goes on in parts, the last one first, perhaps without one of them."""
    note = f'xmlns:n="http://ns.adobe.com/xmp/note/" n:HasExtendedXMP="{mentioned}"'
    content, starts = jpeg("red", None, xmp_packet(f'xmp:Rating="4" {note}')), range(0, len(rest), part)
    for number, start in enumerate(starts):
        data = b"http://ns.adobe.com/xmp/extension/\0" + b"AB" * 16 + struct.pack(">II", len(rest), start)
        data += rest[start : start + part]
        if number != skip:
            content = content[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + content[2:]
    return content


ITXT = b"XML:com.adobe.xmp\0"
HELD = [
    (png(chunk(b"iTXt", ITXT + b"\0\0\0\0" + XMP)), "png", WORDS),
    (png(chunk(b"iTXt", ITXT + b"\1\0\0\0" + zlib.compress(XMP))), "png", WORDS),
    (png(chunk(b"eXIf", BLOCK)), "png", DATED),
    (png(chunk(b"tEXt", b"Creation Time\x002017-03-04T05:06:07")), "png", {"taken": "2017-03-04T05:06:07"}),
    (png(chunk(b"zTXt", b"Creation Time\0\0" + zlib.compress(b"2017-03-04"))), "png", {"taken": "2017-03-04"}),
    (png(profile("exif", b"Exif\0\0" + BLOCK)), "png", DATED),
    (png(profile("APP1", b"Exif\0\0" + BLOCK)), "png", DATED),
    (png(profile("xmp", XMP)), "png", WORDS),
    (png(profile("APP1", b"http://ns.adobe.com/xap/1.0/\0" + XMP)), "png", WORDS),
    (png(chunk(b"iTXt", ITXT + b"\0\0\0\0" + XMP), chunk(b"eXIf", BLOCK), frames=3), "apng", {**DATED, **WORDS}),
    (png(chunk(b"iTXt", ITXT + b"\1\0\0\0?"), chunk(b"eXIf", BLOCK)), "png", DATED),
    (png(chunk(b"eXIf", BLOCK), b"\xff\xff\xff\xf0tEXt"), "png", DATED),
    (START + box(b"Exif", bytes(4) + BLOCK) + brob(b"xml ", XMP), "jxl", {**DATED, **WORDS}),
    (START + brob(b"Exif", bytes(4) + BLOCK) + box(b"brob", b"xml ?"), "jxl", DATED),
    (START + brob(b"xml ", b" " * 9_000_000), "jxl", {}),
    (extended(XMP), "jpg", {"rating": 4, **WORDS}),
    (extended(b'<?xml version="1.0"?>' + XMP + b"\n"), "jpg", {"rating": 4, **WORDS}),
    (extended(XMP, mentioned="CD" * 16), "jpg", {"rating": 4}),
    (extended(XMP, skip=2), "jpg", {"rating": 4}),
    (extended(b"<!DOCTYPE x>" + XMP), "jpg", {"rating": 4}),
    (extended(XMP[:-9]), "jpg", {"rating": 4}),
]  # fmt: skip


def test_facts_are_found_wherever_the_file_keeps_them(tmp_path: Path) -> None:
    failures = Failures()
    for number, (content, suffix, said) in enumerate(HELD):
        with failures.of(number):
            path = tmp_path / f"{number}.{suffix}"
            path.write_bytes(content)
            assert read_header(path) == said
    assert not failures, failures


def test_compressed_facts_are_counted_without_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.jxl": brob(b"xml ", XMP), "b.jxl": box(b"xml ", XMP), "c.jxl": brob(b"Exif", BLOCK), "d.jxl": b""}
    for name, boxes in files.items():
        (tmp_path / name).write_bytes(START + boxes)
    paths = [*map(tmp_path.joinpath, files), tmp_path / "gone.jxl"]
    assert unread_facts(paths) == []
    monkeypatch.setattr(jxl, "is_installed", lambda name: False)
    (line,) = unread_facts(paths)
    assert names(line, "2 JPEG XL") and str(paths[0]) in line and "brotli" in line
    assert read_header(paths[0]) == {}
