"""Two numbers of a stranger's file that are bounded, and whose product would take minutes or gigabytes."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from openvse.datasets import open_corpus
from openvse.errors import DataError, OpenVSEError
from openvse.media.listing import list_media, rules_of
from openvse.media.sidecars import Sidecars, read_facts
from photographs import jpeg
from tests.naming import refusal

pytestmark = pytest.mark.medium


def segment(mark: bytes, content: bytes) -> bytes:
    return b"\xff" + mark + struct.pack(">H", len(content) + 2) + content


def days_and_clocks(folder: Path) -> object:
    held = b"\x1c\x02\x37\0\x01x" * 5400 + b"\x1c\x02\x3c\0\x01x" * 5400
    block = b"Photoshop 3.0\0" + b"8BIM\4\4\0\0" + struct.pack(">I", len(held)) + held
    (folder / "a.jpg").write_bytes(jpeg()[:2] + segment(b"\xed", block) + jpeg()[2:])
    return read_facts(folder / "a.jpg")


def parts_of_a_packet(folder: Path) -> object:
    name = b"http://ns.adobe.com/xmp/extension/\0" + b"A" * 32
    packet = segment(b"\xe1", b"http://ns.adobe.com/xap/1.0/\0<x>" + b"A" * 32 + b" " * 64_000 + b"</x>")
    parts = (segment(b"\xe1", name + struct.pack(">II", 60_000, number) + b"y") for number in range(60_000))
    (folder / "a.jpg").write_bytes(jpeg()[:2] + packet + b"".join(parts) + jpeg()[2:])
    return read_facts(folder / "a.jpg")


def sidecars_and_titles(folder: Path) -> object:
    (folder / "b.json").write_text(json.dumps({"title": "x" * 60_000, "photoTakenTime": {}}))
    Sidecars(folder, ["b.json"], ["a.jpg"])
    some = ["".join(each) for each in product(*((each, each.upper()) for each in "abcdefghijk"))]
    names = [f"{each}.jpg" for each in some]
    found = Sidecars(folder, [f"{each}.JPG.xmp" for each in some], names)
    assert sum(len(found.of(name)) for name in names) == 20 * len(names)
    return found


def columns_of_a_table(folder: Path) -> object:
    (folder / "a.csv").write_text(",".join(["file_name", "caption", *map(str, range(40_000))]))
    (folder / "b.csv").write_text(",".join(["file_name", *(f"caption_{n}" for n in range(20_000))]))
    refusal(DataError, open_corpus, str(folder / "b.csv"), require_images=False)
    return open_corpus(str(folder / "a.csv"), require_images=False)


def copies_of_a_member(folder: Path) -> object:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for _ in range(5_000):
            archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    return open_corpus(str(folder / "a.tar"), require_images=False)


def stars_of_a_rule(folder: Path) -> object:
    (folder / ("a" * 240 + ".jpg")).write_bytes(jpeg())
    (folder / ".openvseignore").write_text("*a" * 9 + "*b\n*a*.gif\n*(*(*(*\n")
    return list_media(folder, ignored=rules_of(folder)).names[0]


def levels_of_a_pattern(folder: Path) -> object:
    Path(folder, *"d" * 30).mkdir(parents=True)
    (folder / "README.md").write_text(f"---\nconfigs:\n- data_files: '{'**/' * 9}*.parquet'\n---\n")
    return open_corpus(f"hf:{folder}")


def lines_before_a_head(folder: Path) -> object:
    (folder / "README.md").write_text("---\n" + "\n" * 200_000 + "x")
    return open_corpus(f"hf:{folder}")


def parts_of_a_sparse_member(folder: Path) -> object:
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 60)}
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a.jpg")
        member.size, member.pax_headers = 512, sparse
        archive.addfile(member, io.BytesIO(b"9" * 512))
    return open_corpus(str(folder), require_images=False)


PRODUCTS = (
    days_and_clocks,
    parts_of_a_packet,
    sidecars_and_titles,
    columns_of_a_table,
    copies_of_a_member,
    stars_of_a_rule,
    levels_of_a_pattern,
    lines_before_a_head,
    parts_of_a_sparse_member,
)


@pytest.mark.parametrize("read", PRODUCTS)
def test_a_product_of_two_bounded_numbers_is_bounded(read: Callable[[Path], object], tmp_path: Path) -> None:
    began = time.process_time()
    with suppress(OpenVSEError):
        read(tmp_path)
    assert time.process_time() - began < 4
