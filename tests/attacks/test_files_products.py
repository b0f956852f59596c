"""Two numbers of a stranger's file that are bounded, and whose product would take minutes or gigabytes."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path

import pytest

from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError
from openvse.media.listing import list_media, rules_of
from openvse.media.sidecars import Sidecars, read_facts
from photographs import jpeg

pytestmark = pytest.mark.medium
VARIANTS = ["".join(each) for each in islice(product(*[(each, each.upper()) for each in "abcdefghijkl"]), 4000)]


def segment(mark: bytes, content: bytes) -> bytes:
    return b"\xff" + mark + struct.pack(">H", len(content) + 2) + content


def with_segments(folder: Path, segments: bytes) -> Callable[[], object]:
    (folder / "a.jpg").write_bytes(jpeg()[:2] + segments + jpeg()[2:])
    return lambda: read_facts(folder / "a.jpg")


def days_and_clocks(folder: Path) -> Callable[[], object]:
    held = b"\x1c\x02\x37\0\x01x" * 5400 + b"\x1c\x02\x3c\0\x01x" * 5400
    return with_segments(folder, segment(b"\xed", b"Photoshop 3.0\08BIM\4\4\0\0" + struct.pack(">I", len(held)) + held))


def parts_of_a_packet(folder: Path) -> Callable[[], object]:
    name, numbers = b"http://ns.adobe.com/xmp/extension/\0" + b"A" * 32, range(60_000)
    packet = b"http://ns.adobe.com/xap/1.0/\0<x>" + b"A" * 32 + b" " * 64_000 + b"</x>"
    parts = (segment(b"\xe1", name + struct.pack(">II", 60_000, number) + b"y") for number in numbers)
    return with_segments(folder, segment(b"\xe1", packet) + b"".join(parts))


def beginnings_of_a_title(folder: Path) -> Callable[[], object]:
    (folder / "b.json").write_text(json.dumps({"title": "x" * 60_000, "photoTakenTime": {}}))
    return lambda: Sidecars(folder, ["b.json"], ["a.jpg"])


def sidecars_of_a_name(folder: Path) -> Callable[[], object]:
    names, sidecars = [f"{each}.jpg" for each in VARIANTS], [f"{each}.JPG.xmp" for each in VARIANTS]

    def count() -> None:
        found = Sidecars(folder, sidecars, names)
        assert sum(len(found.of(name)) for name in names) == 20 * len(names)

    return count


def corpus_of(path: Path) -> Callable[[], object]:
    return lambda: open_corpus(str(path), require_images=False)


def columns_and_places(folder: Path) -> Callable[[], object]:
    names = ",".join(["file_name", "caption", *map(str, range(40_000))])
    (folder / "a.csv").write_text(f"{names}\n")
    return corpus_of(folder / "a.csv")


def columns_of_captions(folder: Path) -> Callable[[], object]:
    (folder / "a.csv").write_text(f"{','.join(['file_name', *(f'caption_{n}' for n in range(20_000))])}\n")
    return corpus_of(folder / "a.csv")


def copies_of_a_member(folder: Path) -> Callable[[], object]:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for _ in range(5_000):
            archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    return corpus_of(folder / "a.tar")


def stars_of_a_rule(folder: Path) -> Callable[[], object]:
    (folder / ("a" * 240 + ".jpg")).write_bytes(jpeg())
    (folder / ".openvseignore").write_text("*a" * 9 + "*b\n*a*.gif\n!*(*(*(*\n")
    return lambda: list_media(folder, ignored=rules_of(folder)).names[0]


def levels_of_a_pattern(folder: Path) -> Callable[[], object]:
    Path(folder, *"d" * 30).mkdir(parents=True)
    (folder / "README.md").write_text(f"---\nconfigs:\n- data_files: '{'**/' * 9}*.parquet'\n---\n")
    return corpus_of(Path(f"hf:{folder}"))


PRODUCTS = (
    days_and_clocks,
    parts_of_a_packet,
    beginnings_of_a_title,
    sidecars_of_a_name,
    columns_and_places,
    columns_of_captions,
    copies_of_a_member,
    stars_of_a_rule,
    levels_of_a_pattern,
)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product_of_two_bounded_numbers_is_bounded(
    kind: Callable[[Path], Callable[[], object]], tmp_path: Path
) -> None:
    read = kind(tmp_path)
    began = time.process_time()
    try:
        read()
    except OpenVSEError as error:
        assert "\n" not in str(error)
    assert time.process_time() - began < 2
