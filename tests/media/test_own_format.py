"""A format of images of one's own, in one file: it is listed, read, refused where it is too large, and served."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from openvse.errors import BadImageError, OpenVSEError
from openvse.media.formats import ImageFormat
from openvse.media.headers import held_in, unread_facts
from openvse.media.images import read_image
from openvse.media.listing import UNNAMED, list_media
from openvse.media.names import IMAGE_FORMATS, format_of, is_image, names_image
from openvse.media.videos import read_frames
from openvse.registry import load_plugin
from openvse.serving.decoding import Decoders, plugins_of_formats
from tests.naming import names, refusal

PLUGIN = """
from openvse.media.formats import ImageFormat
from openvse.media.names import IMAGE_FORMATS


def size(content):
    return int.from_bytes(content[4:6], "big"), int.from_bytes(content[6:8], "big")


def opens(file):
    from PIL import Image
    content = file.getvalue() if hasattr(file, "getvalue") else file.read_bytes()
    return Image.frombytes("RGB", size(content), content[8:])


def facts(path):
    from PIL import Image
    return Image.Exif(), b""


TILE = ImageFormat(
    "Tile", "tile tl", begins=lambda start: start.startswith(b"TILE"), opens=opens, size=size, facts=facts,
    unread=lambda path: "they are in no file: ask somebody", media_type="image/x-tile",
)
for suffix in TILE.suffixes.split():
    IMAGE_FORMATS.add(suffix, TILE)
"""
WHOLE = b"TILE" + bytes([0, 4, 0, 2]) + bytes(range(24))


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a plug-in, which is forgotten after the test."""
    monkeypatch.setattr(IMAGE_FORMATS, "_parts", dict(IMAGE_FORMATS._parts))
    monkeypatch.setattr("openvse.registry._plugins", [])
    (tmp_path / "tile.py").write_text(PLUGIN)
    load_plugin(tmp_path / "tile.py")
    monkeypatch.delitem(sys.modules, "openvse_plugin_tile")


def test_it_is_listed_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.tile", "b.TL", "c", "d.jpg"):
        (folder / name).write_bytes(WHOLE)
    listing = list_media(folder)
    assert listing.names == ["a.tile", "b.TL", "d.jpg"]
    assert listing.left_out.files == {UNNAMED: [folder / "c"]}
    for source in (*listing.paths, WHOLE):
        image = read_image(source)
        assert image.size == (4, 2) and image.getpixel((1, 0)) == (3, 4, 5)
    assert read_frames(folder / "a.tile")[0].size == (4, 2)
    assert is_image("a.tile") and names_image("/photos/a.tl") and not is_image(".tile")
    with held_in(folder / "a.tile") as held:
        assert held[1:] == (b"", None)
    assert unread_facts(listing.paths[:2]) == [
        f"the facts of 2 Tile file(s) are not read (first: {folder / 'a.tile'}): they are in no file: ask somebody"
    ]
    known = format_of("a.tl")
    assert known is not None and known.media_type == "image/x-tile"


def test_a_large_or_damaged_one_is_refused() -> None:
    with pytest.raises(BadImageError, match="4 x 2 pixels"):
        read_image(b"TILE" + bytes([0, 4, 0, 2]), max_pixels=7)  # before it is decoded
    for length in range(4, len(WHOLE)):
        refusal(BadImageError, read_image, WHOLE[:length])


@pytest.mark.medium
def test_the_processes_of_a_server_read_it(tmp_path: Path) -> None:
    async def decoded() -> bytes:
        decoders = Decoders(1, 60.0)
        try:
            image = await decoders.decoded({"kind": "pixels", "max_pixels": 100}, WHOLE)
            return bytes(image.tobytes())
        finally:
            decoders.close()

    (tmp_path / "pool.py").write_text("import torch")  # for which they have no memory
    load_plugin(tmp_path / "pool.py")
    assert plugins_of_formats() == [tmp_path / "tile.py"]
    assert asyncio.run(decoded()) == WHOLE[8:]


def test_what_is_no_format_is_refused() -> None:
    IMAGE_FORMATS.add("other", lambda file: file)
    assert names(refusal(OpenVSEError, is_image, "a.other"), "'other'")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    IMAGE_FORMATS.add("qqq", ImageFormat("Q", "qqq", package="no_such_package", remedy="pip install q"))
    assert not is_image("a.qqq") and names_image("a.qqq")
