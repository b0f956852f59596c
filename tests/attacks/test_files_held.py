"""Attacks by files and models that were tried and held: each once, small."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image, PngImagePlugin

import openvse
from openvse.conversion.convert import convert
from openvse.datasets import open_corpus
from openvse.errors import BadImageError, BadVideoError, OpenVSEError
from openvse.exporting.write import export
from openvse.media.headers import read_xmp
from openvse.media.images import read_image
from openvse.media.videos import read_frames
from openvse.model.two_tower import TwoTower
from openvse.runtime.model import open_program
from openvse.search import Hit, contact_sheet
from tests import tiny_checkpoints as tiny
from tests.media.test_images import png_that_claims
from tests.naming import names, refusal
from tests.runtime.colour_export import write_export

pytestmark = pytest.mark.medium

NASTY = "<script>alert('1')</script>\x1b[2J'; DROP TABLE items; --"


class Runs:
    """An object that makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.mark),)


def _set(checkpoint: dict, name: str, value: object) -> None:
    next(part for part in checkpoint["model"] if name in part)[name] = value


HUGE: dict[str, Callable[[], object]] = {
    "stride": lambda: torch.zeros(1).expand(1 << 20, 1 << 20),
    "sparse": lambda: torch.sparse_coo_tensor(torch.zeros(2, 1).long(), torch.ones(1), (1 << 20, 1 << 20)),
    "meta": lambda: torch.empty(1 << 20, 1 << 20, device="meta"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_weights_that_claim_more_than_they_hold_are_refused(kind: str, tmp_path: Path) -> None:
    checkpoint = tiny.vse_infinity()
    _set(checkpoint, "fc.weight", HUGE[kind]())
    torch.save(checkpoint, tmp_path / "a.pth")
    assert (tmp_path / "a.pth").stat().st_size < 1 << 20
    refusal(OpenVSEError, convert, str(tmp_path / "a.pth"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def saved(model: TwoTower, folder: Path) -> Path:
    model.save(folder)
    return folder


def test_weights_that_are_a_pickle_are_not_unpickled(model: TwoTower, tmp_path: Path) -> None:
    folder, mark = saved(model, tmp_path / "model"), tmp_path / "it_ran"
    weights = folder / "model.safetensors"
    for content in (pickle.dumps(Runs(mark)), b"\x80\x02" + weights.read_bytes()):
        weights.write_bytes(content)
        refusal(OpenVSEError, openvse.load, folder)
    torch.save({"weight": Runs(mark)}, weights)
    refusal(OpenVSEError, openvse.load, folder)
    assert not mark.exists()


def test_a_model_names_no_code_as_a_part(model: TwoTower, tmp_path: Path) -> None:
    folder = saved(model, tmp_path / "model")
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'it_ran')!r})\n")
    config = json.loads((folder / "config.json").read_text())

    def with_part(name: object) -> dict:
        tree = json.loads(json.dumps(config))
        tree["model"]["image"]["aggregator"] = name
        return tree

    wrong = [with_part(name) for name in ("os:system", "evil", "evil.Part", {"name": "os.system"}, ["evil"])]
    for tree in (*wrong, {**config, "plugins": ["evil.py"]}, {**config, "model": {**config["model"], "plugin": 1}}):
        (folder / "config.json").write_text(json.dumps(tree))
        try:
            openvse.load(folder)
        except OpenVSEError:
            continue
        assert tree not in wrong
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.slow  # the import of the library
def test_an_export_for_other_libraries_takes_no_code_along(model: TwoTower, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    folder = saved(model, tmp_path / "model")
    for name in ("modeling.py", "sentence_transformers.py", "torch.py"):
        (folder / name).write_text(f"import os\nos.mkdir({str(tmp_path / 'it_ran')!r})\n")
    export(openvse.load(folder), tmp_path / "out", format="sentence_transformers")
    assert (tmp_path / "out" / "modules.json").is_file()
    assert not [*(tmp_path / "out").rglob("*.py")] and not (tmp_path / "it_ran").exists()


@pytest.mark.parametrize("where", ["../secret", "absolute", "link"])
def test_a_program_reads_no_weights_from_elsewhere(where: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    folder = write_export(tmp_path / "export")
    program = onnx.load(folder / "text.onnx")
    table = next(each for each in program.graph.initializer if each.name == "table")
    (tmp_path / "secret").write_bytes(table.raw_data)
    (folder / "link").symlink_to(tmp_path / "secret")
    location = str(tmp_path / "secret") if where == "absolute" else where
    table.ClearField("raw_data")
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", str((tmp_path / "secret").stat().st_size))):
        table.external_data.add(key=key, value=value)
    (folder / "text.onnx").write_bytes(program.SerializeToString())
    refusal(OpenVSEError, open_program, folder / "text.onnx")


def test_conditions_reach_a_database_as_values(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    from openvse.indexing.conditions import parse_condition
    from openvse.stores.base import Within
    from openvse_engines.pgvector import _where

    hostile = (
        'meta.title = "\'; DROP TABLE items; --"',
        'title contains "x\') OR true --"',
        "year > 3",
        'path = "$$a$$"',
    )
    for text in hostile:
        made, values = _where(Within((parse_condition(text),)))
        written = made.as_string(None)
        assert "DROP" not in written and "true --" not in written and "$$" not in written
        assert written.count("%s") == len(values)


def _claims(kind: str, **options: object) -> bytes:
    target = io.BytesIO()
    Image.effect_noise((64, 64), 60).convert("RGB").save(target, kind, **options)
    return target.getvalue()


def _tiff_that_claims(side: int) -> bytes:
    content = bytearray(_claims("TIFF", compression="tiff_adobe_deflate"))
    for tag in (256, 257):
        at = content.find(tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + (64).to_bytes(4, "little"))
        at = at if at >= 0 else content.find(tag.to_bytes(2, "little") + b"\3\0\1\0\0\0" + (64).to_bytes(4, "little"))
        content[at + 2 : at + 12] = b"\4\0\1\0\0\0" + side.to_bytes(4, "little")
    return bytes(content)


def test_pictures_that_claim_more_than_they_hold_are_refused() -> None:
    assert read_image(_tiff_that_claims(64)).size == (64, 64)
    for content in (png_that_claims(60_000, 60_000), _tiff_that_claims(60_000)):
        refusal(BadImageError, read_image, content)
    for kind in ("AVIF", "JPEG2000", "JXL", "HEIF"):
        if kind in ("JXL", "HEIF"):
            module = {"JXL": "pillow_jxl", "HEIF": "pillow_heif"}[kind]
            getattr(pytest.importorskip(module), "register_heif_opener", lambda: None)()
        content = _claims(kind)
        refusal(BadImageError, read_image, content, max_pixels=64 * 64 - 1)


def test_a_text_of_a_picture_is_not_unpacked_without_end(monkeypatch) -> None:
    """Neither one large text, nor many that are damaged, that come again, or of which no further one has room."""
    content, unpacked, unpack = _claims("PNG"), list[int](), PngImagePlugin._safe_zlib_decompress
    at, large = content.index(b"IDAT") - 4, zlib.compress(bytes(20_000_000), 9)

    def counted(packed: bytes) -> bytes:
        unpacked.append(len(packed))
        return unpack(packed)

    def chunk(kind: bytes, held: bytes) -> bytes:
        return len(held).to_bytes(4, "big") + kind + held + zlib.crc32(kind + held).to_bytes(4, "big")

    monkeypatch.setattr(PngImagePlugin, "_safe_zlib_decompress", counted)
    bombs = {
        "large": (chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(1 << 27), 9)), 1),
        "damaged": (chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(100))[:-4] + b"none") * 300, 40),
        "profiles": (chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(100))) * 300, 40),
        "room": (b"".join(chunk(b"zTXt", b"k%d\0\0" % number + large) for number in range(12)), 6),
    }
    for name, (bomb, most) in bombs.items():
        unpacked.clear()
        assert len(bomb) < 1 << 19, name
        assert read_image(content[:at] + bomb + content[at:]).size == (64, 64), name
        assert 0 < len(unpacked) <= most, name


def test_the_parts_of_an_avif_are_few() -> None:
    """A grid of 65,025 tiles, or 65,000 numbers of parts that are not there, take more than a minute to look for."""
    content, plain = _claims("AVIF"), io.BytesIO()
    Image.new("RGB", (64, 64)).save(plain, "AVIF")
    assert read_image(plain.getvalue()).size == (64, 64)
    at = content.index(b"meta") - 4
    size = int.from_bytes(content[at : at + 4], "big")
    numbers = b"dimg" + struct.pack(">HH", 1, 40_000) + b"".join(struct.pack(">H", n) for n in range(2, 40_002))
    refers = b"iref" + bytes(4) + struct.pack(">I", len(numbers) + 4) + numbers
    many = struct.pack(">I", len(refers) + 4) + refers
    head = struct.pack(">I", size + len(many)) + content[at + 4 : at + size] + many
    assert names(refusal(BadImageError, read_image, content[:at] + head + content[at + size :]), "65,536")


XMP = {
    "entities": b'<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;">]><x>&b;</x>',
    "external": b'<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd"><x/>',
    "file": b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>',
    "deep": b"<a>" * 1_000_000,
}


@pytest.mark.parametrize("name", XMP)
def test_metadata_of_pictures_expand_and_fetch_nothing(name: str) -> None:
    refusal(OpenVSEError, read_xmp, XMP[name])


OTHERS = {
    "a.mp4": b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n#EXT-X-ENDLIST\n",
    "b.mp4": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    "c.mp4": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period/></MPD>',
    "d.mkv": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 1 RTP/AVP 96\n",
}
DRAWINGS = {
    "a.jpg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "b.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n(/etc/passwd) (r) file\n",
    "c.jpg": b"%PDF-1.7\n",
    "d.png": b"push graphic-context\nimage over 0,0 0,0 'https://127.0.0.1:1/'\n",
}


def test_lists_and_drawings_by_the_name_of_media_are_refused(tmp_path: Path) -> None:
    for files, error in ((OTHERS, BadVideoError), (DRAWINGS, BadImageError)):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            refusal(error, read_frames if error is BadVideoError else read_image, tmp_path / name)


def test_members_of_an_archive_and_rows_of_parquet_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(_claims("JPEG"))
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "a.tar", "w") as archive:
        for name, kind in (("a.jpg", tarfile.SYMTYPE), ("b.jpg", tarfile.LNKTYPE), ("c.jpg", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret.jpg")
            archive.addfile(member)
            text = tarfile.TarInfo(name.replace("jpg", "txt"))
            text.size = 1
            archive.addfile(text, io.BytesIO(b"x"))
    refusal(OpenVSEError, open_corpus, tmp_path / "data" / "a.tar")
    from pyarrow import parquet, table

    for name in ("../secret.jpg", str(tmp_path / "secret.jpg")):
        parquet.write_table(table({"file_name": [name], "caption": ["x"]}), tmp_path / "data" / "a.parquet")
        refusal(OpenVSEError, open_corpus, tmp_path / "data" / "a.parquet")


def test_names_of_runs_and_pictures_are_text_in_pages_and_terminals(tmp_path: Path) -> None:
    from openvse.cli.progress import copyable
    from openvse.media.names import escaped
    from openvse.output.documents import html_page
    from openvse.output.table import Table

    page = contact_sheet({NASTY: [Hit(1, 0.5, NASTY, tmp_path / "a.jpg", title=NASTY)]}, NASTY, note=NASTY)
    page += html_page(NASTY, Table((NASTY,), ((NASTY,),)).to_html(), note=NASTY)
    assert "<script>" not in page and page.count("alert") >= 5
    assert "\x1b" not in escaped(NASTY) and "\x1b" not in copyable(f"error: {NASTY}")
