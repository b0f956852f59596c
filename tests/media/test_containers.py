"""Facts that a container keeps apart: behind the pixels, compressed, or in several parts."""

import io
import resource
import struct
import zlib
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from openvse.media import formats
from openvse.media.containers import unread_facts
from photographs import bag, exif_of, jpeg, photoshop, read_header, xmp_packet
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


def plain(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    return file.getvalue()


def jp2(*boxes: bytes) -> bytes:
    """Return a JPEG 2000 with boxes of UUIDs behind its pixels."""
    return plain("JPEG2000") + b"".join(box(b"uuid", each) for each in boxes)


IPTC = {5: ["Straße".encode("latin-1")], 25: [b"kumquat"]}
JP2_XMP, JP2_IPTC = map(bytes.fromhex, ("be7acfcb97a942e89c71999491e3afac", "33c7a4d2b81d4723a0baf1a3e097ad38"))
NAMED = {"title": "Straße", **WORDS}
ITXT = b"XML:com.adobe.xmp\0"
HELD = [
    (png(chunk(b"iTXt", ITXT + b"\0\0\0\0" + XMP)), "png", WORDS),
    (png(chunk(b"iTXt", ITXT + b"\1\0\0\0" + zlib.compress(XMP))), "png", WORDS),
    (png(chunk(b"eXIf", BLOCK)), "png", DATED),
    (png(chunk(b"tEXt", b"Creation Time\x002017-03-04T05:06:07")), "png", {"taken": "2017-03-04T05:06:07"}),
    (png(chunk(b"zTXt", b"Creation Time\0\0" + zlib.compress(b"2017-03-04"))), "png", {"taken": "2017-03-04"}),
    (png(profile("exif", b"Exif\0\0" + BLOCK)), "png", DATED),
    (png(profile("APP1", b"Exif\0\0" + BLOCK)), "png", DATED),
    (png(profile("iptc", photoshop(IPTC))), "png", NAMED),
    (png(profile("8bim", photoshop(IPTC))), "png", NAMED),
    (png(chunk(b"tEXt", b"Title\0Stra\xdfe"), chunk(b"iTXt", "Description\0\0\0\0\0雪".encode())), "png",
     {"title": "Straße", "description": "雪"}),
    (jp2(b"JpgTiffExif->JP2" + BLOCK, JP2_XMP + XMP), "jp2", {**DATED, **WORDS}),
    (jp2(JP2_IPTC + photoshop(IPTC)[12:]), "jp2", NAMED),
    (plain("GIF")[:-1] + b"!\xff\x0bXMP DataXMP" + XMP + b"\1" + bytes(range(255, -1, -1)) + b"\0;", "gif", WORDS),
    (plain("GIF")[:-1] + b"!\xff\x0bXMP DataXMP" * 1_000_000, "gif", {}),
    (START + box(b"free", b"") * 200_000 + box(b"xml ", XMP), "jxl", {}),
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


def test_facts_are_found_wherever_the_file_keeps_them(tmp_path: Path, failures: Failures) -> None:
    for number, (content, suffix, said) in enumerate(HELD):
        with failures.of(number):
            path = tmp_path / f"{number}.{suffix}"
            path.write_bytes(content)
            assert read_header(path) == said


def test_large_files_are_not_read_into_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    starts = {"gif": plain("GIF")[:-1], "jp2": plain("JPEG2000"), "jxl": START}
    for (suffix, start), said in zip(starts.items(), ({}, DATED, WORDS), strict=True):
        with (tmp_path / f"a.{suffix}").open("wb") as file:  # with a hole, which takes no room
            file.write(start + struct.pack(">I4sQ", 1, b"free", 1 << 31))
            file.seek(len(start) + (1 << 31))
            file.write(box(b"uuid", b"JpgTiffExif->JP2" + BLOCK) if suffix == "jp2" else box(b"xml ", XMP))
        assert read_header(tmp_path / f"a.{suffix}") == said
        assert unread_facts([tmp_path / f"a.{suffix}"]) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_compressed_facts_are_counted_without_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.jxl": brob(b"xml ", XMP), "b.jxl": box(b"xml ", XMP), "c.jxl": brob(b"Exif", BLOCK), "d.jxl": b""}
    for name, boxes in files.items():
        (tmp_path / name).write_bytes(START + boxes)
    paths = [*map(tmp_path.joinpath, files), tmp_path / "gone.jxl"]
    assert unread_facts(paths) == []
    monkeypatch.setattr(formats, "is_installed", lambda name: False)
    (line,) = unread_facts(paths)
    assert names(line, "2 JPEG XL") and str(paths[0]) in line and "brotli" in line
    assert read_header(paths[0]) == {}
