"""Sidecars of photographs that are broken, harmful or endless: one line each, and the photograph stays."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from openvse.errors import DataError
from openvse.media.headers import read_xmp
from openvse.media.sidecars import FileFacts, read_facts, sidecar_problems
from photographs import exif_of, jpeg, xmp_packet
from tests.naming import refusal


def facts(tmp_path: Path, sidecars: dict[str, bytes], content: bytes = b"") -> FileFacts:
    (tmp_path / "a.jpg").write_bytes(content or jpeg())
    for each, written in sidecars.items():
        (tmp_path / each).write_bytes(written)
    return read_facts(tmp_path / "a.jpg", [tmp_path / each for each in sidecars])


LAUGHS = b'<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;">]>' + xmp_packet('xmp:Label="&b;"')
OUTSIDE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + xmp_packet("", "<dc:title>&a;</dc:title>")
BAD = {
    "no XML": ("a.jpg.xmp", b"Rating: 4"),
    "an end too early": ("a.jpg.xmp", xmp_packet('xmp:Rating="4"')[:-20]),
    "a billion laughs": ("a.jpg.xmp", LAUGHS),
    "a file from outside": ("a.jpg.xmp", OUTSIDE),
    "the same in UTF-16": ("a.jpg.xmp", OUTSIDE.decode().encode("utf-16")),
    "many tags": ("a.jpg.xmp", b"<a>" + b"<b/>" * 300_000 + b"</a>"),
    "no JSON": ("a.jpg.json", b"{title:"),
    "no UTF-8": ("a.jpg.json", b'{"title": "\xff"}'),
    "deep": ("a.jpg.json", b"[" * 100_000),
    "of another picture": ("a.jpg.json", b'{"title": "b.jpg", "geoData": {}, "description": "not this"}'),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_sidecar_is_one_line_and_the_file_counts(tmp_path: Path, kind: str) -> None:
    name, content = BAD[kind]
    found = facts(tmp_path, {name: content}, jpeg("red", exif_of(maker="Canon", model="Canon X")))
    assert found.header == {"camera": "Canon X"}
    (line,) = sidecar_problems([found])
    assert name in line and "\n" not in line and len(line) < 400 + len(str(tmp_path))


def test_deep_xml_is_read_or_refused(tmp_path: Path) -> None:
    facts(tmp_path, {"a.jpg.xmp": b"<a>" * 99_000 + b"</a>" * 99_000})


@pytest.mark.medium
@pytest.mark.parametrize("name", ["a.jpg.xmp", "a.jpg.json"])
def test_a_sidecar_of_200_mb_takes_no_memory(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(200_000_000)
    (tmp_path / "a.jpg").write_bytes(jpeg())
    tracemalloc.start()
    found = read_facts(tmp_path / "a.jpg", [tmp_path / name])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.problems) == 1 and found.header == {}
    assert most < 20_000_000


def test_a_sidecar_that_leads_elsewhere_or_never_ends_is_not_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "photos", tmp_path / "secret.xmp"
    inside.mkdir()
    outside.write_bytes(xmp_packet('xmp:Label="secret"'))
    (inside / "a.jpg.xmp").symlink_to(outside)
    os.mkfifo(inside / "b.jpg.xmp")
    (inside / "c.jpg.xmp").symlink_to("gone.xmp")
    (inside / "real.xmp").write_bytes(xmp_packet('xmp:Label="Red"'))
    (inside / "d.jpg.xmp").symlink_to("real.xmp")
    (inside / "e.jpg.xmp").symlink_to("e.jpg.xmp")
    for name in "abcde":
        (inside / f"{name}.jpg").write_bytes(jpeg())
    found = [read_facts(inside / f"{name}.jpg", [inside / f"{name}.jpg.xmp"]) for name in "abcde"]
    assert [len(each.problems) for each in found] == [1, 1, 1, 0, 1]
    assert [each.header for each in found] == [{}, {}, {}, {"color_label": "Red"}, {}]


def test_any_error_of_a_sidecar_is_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("openvse.media.sidecars.read_xmp", lambda *_: {}["a\nkey"])
    told = b'{"title": "a.jpg", "photoTakenTime": {}, "geoData": {"latitude": %s, "longitude": 1}, "description": "d"}'
    found = facts(tmp_path, {"a.jpg.xmp": b"", "a.jpg.json": told % (b"9" * 4000)})
    (line,) = found.problems
    assert found.header == {"description": "d"} and "a.jpg.xmp" in line and "\n" not in line


def test_xmp_that_might_harm_is_refused() -> None:
    refusal(DataError, read_xmp, LAUGHS)
