"""A folder of images in place of an index: what is said, asked and made, and that nothing is done twice."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

import openvse
from openvse.errors import BadImageError, IndexFormatError, OpenVSEError
from openvse.indexing.scanning import list_roots
from openvse.search import opening
from openvse.search.opening import IndexTowers
from photographs import bag, jpeg, xmp_packet
from tests.naming import names, refusal
from tests.runtime.colour_export import write_export


@pytest.fixture
def photos(tmp_path: Path, monkeypatch) -> Path:
    """Three photographs in a folder without an index, and an exported model that the environment names."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("red", "green", "blue"):
        (folder / f"{name}.jpg").write_bytes(jpeg(name))
    monkeypatch.setenv("OPENVSE_MODEL", str(write_export(tmp_path / "model")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def hits(result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [hit["id"] for hit in json.loads(result.stdout)["result"]["queries"][0]["hits"]]


@pytest.mark.medium
def test_nothing_is_made_without_asking(photos: Path, invoke, refused) -> None:
    line = refused("search", photos, "red")
    assert all(word in line for word in (str(photos), "3 images", "--yes", str(photos.parent / "model")))
    assert "minute" in line and str(photos.parent / "photos.index") in line
    assert "--yes" in refused("serve", photos)
    assert "clip-b32" in refused("search", photos, "red", "--model", "clip-b32")
    assert sorted(photos.parent.iterdir()) == [photos.parent / "model", photos]


@pytest.mark.medium
def test_a_folder_is_served_by_the_model_that_its_index_names(photos: Path, refused, monkeypatch) -> None:
    """``names`` is a model that is made with an index, and none that could be loaded by this word."""

    def loaded(source: object, settings: object, model: str | None, *_: object, **__: object) -> None:
        raise OpenVSEError(f"served by {model}")

    monkeypatch.setattr("openvse.cli.commands.serve.load_service", loaded)
    assert "served by None" in refused("serve", photos, "--yes", "--model", photos.parent / "model", "--mcp")


def test_the_first_model_is_clip_with_the_size_of_its_download(photos: Path, refused, monkeypatch) -> None:
    monkeypatch.delenv("OPENVSE_MODEL")
    line = refused("search", photos, "red")
    assert "clip-b32" in line and "604 MB" in line


@pytest.mark.medium
def test_later_searches_bring_the_index_up_to_date(photos: Path, invoke, monkeypatch) -> None:
    walks: list[object] = []
    monkeypatch.setattr(
        "openvse.indexing.build.list_roots", lambda *given, **more: (walks.append(0), list_roots(*given, **more))[1]
    )
    assert hits(invoke("search", photos, "red", "--yes", "--json")) == ["red.jpg", "green.jpg", "blue.jpg"]
    out = photos.parent / "photos.index"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*") if path.suffix != ".lock"}
    assert hits(invoke("search", photos, "red", "--json"))[0] == "red.jpg"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (photos / "more.jpg").write_bytes(jpeg("blue"))
    (photos / "red.jpg").unlink()
    (photos / "green.jpg.xmp").write_bytes(xmp_packet("", bag("Iptc4xmpExt:PersonInImage", "Zoe")))
    walks.clear()
    assert set(hits(invoke("search", photos, "blue", "--json"))) == {"blue.jpg", "more.jpg", "green.jpg"}
    assert len(walks) == 1
    assert hits(invoke("search", photos, "blue", "--where", "people = Zoe", "--json")) == ["green.jpg"]
    assert set(hits(invoke("search", out, "blue", "--json"))) == {"blue.jpg", "more.jpg", "green.jpg"}


def test_a_named_model_may_stand_before_the_folder(photos: Path, invoke, monkeypatch) -> None:
    monkeypatch.delenv("OPENVSE_MODEL")
    assert hits(invoke("search", photos.parent / "model", photos, "green", "--yes", "--json"))[0] == "green.jpg"


def test_a_terminal_is_asked(photos: Path, monkeypatch) -> None:
    from openvse.cli.commands.search import agree

    plan = opening.FirstIndex(photos, photos.parent / "photos.index", "clip-b32", 3)
    asked: list[str] = []
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, err: asked.append(text) or len(asked) == 1)
    agree(plan, yes=False)
    refusal(OpenVSEError, agree, plan, yes=False)
    assert len(asked) == 2 and "3 images" in asked[0]


def test_where_nobody_may_write_the_index_is_in_the_cache(photos: Path, monkeypatch, invoke) -> None:
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != photos.parent and allowed(path, mode))
    assert hits(invoke("search", photos, "red", "--yes", "--json"))[0] == "red.jpg"
    (out,) = (photos.parent / "cache" / "openvse" / "indexes").iterdir()
    assert not (photos.parent / "photos.index").exists() and (out / "index.json").is_file()
    assert hits(invoke("search", photos, "red", "--json"))[0] == "red.jpg"


def test_an_index_of_somebody_else_or_a_link_is_not_used(photos: Path, monkeypatch, invoke, tmp_path: Path) -> None:
    photos.chmod(0o700)
    assert hits(invoke("search", photos, "red", "--yes", "--json"))[0] == "red.jpg"
    out, kept = photos.parent / "photos.index", photos.parent / "cache" / "openvse" / "indexes"
    assert out.stat().st_mode & 0o777 == 0o700 and not kept.exists()
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 12345)
        assert opening.place_of_index(photos).parent == kept
    out.rename(tmp_path / "theirs")
    out.symlink_to(tmp_path / "theirs")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "theirs").iterdir()}
    result = invoke("search", photos, "red", "--yes", "--json")
    assert hits(result)[0] == "red.jpg" and str(out) in result.stderr and len([*kept.iterdir()]) == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "theirs").iterdir()} == before


def test_an_index_that_another_process_writes_is_searched_as_it_is(photos: Path, invoke, monkeypatch) -> None:
    assert hits(invoke("search", photos, "red", "--yes", "--json"))[0] == "red.jpg"
    (photos / "more.jpg").write_bytes(jpeg("blue"))

    def busy(*_: object, **__: object) -> None:
        raise IndexFormatError("another process writes it")

    monkeypatch.setattr("openvse.search.updating.build_index", busy)
    result = invoke("search", photos, "red", "--json")
    assert len(hits(result)) == 3 and "warning: " in result.stderr


def test_a_broken_image_loads_no_model(photos: Path) -> None:
    """It is tried again at each search, which would then take seconds."""
    (photos / "broken.jpg").write_bytes(b"no image")
    towers = IndexTowers(photos.parent / "model", lambda: pytest.fail("loaded"))
    refusal(BadImageError, towers.read_image, photos / "broken.jpg")


def test_a_folder_without_images_is_refused(tmp_path: Path, refused) -> None:
    assert str(tmp_path) in refused("search", tmp_path, "red", "--yes")
    assert sorted(tmp_path.iterdir()) == []


def test_the_same_in_python(photos: Path) -> None:
    assert names(refusal(IndexFormatError, openvse.open, photos), "make=True")
    with openvse.open(photos, make=True) as engine:
        assert engine.search("red", top_k=1)[0].id == "red.jpg"
    (photos / "more.jpg").write_bytes(jpeg("red"))
    with openvse.open(photos) as engine:
        assert len(engine.catalogue) == 4


@pytest.mark.slow
def test_a_search_where_nothing_changed_takes_little_more_than_one_of_the_index(photos: Path, invoke) -> None:
    invoke("search", photos, "red", "--yes")

    def seconds(place: Path) -> float:
        began = time.process_time()
        assert invoke("search", place, "red").exit_code == 0
        return time.process_time() - began

    times = [(seconds(photos), seconds(photos.parent / "photos.index")) for _ in range(5)]
    assert min(first for first, _ in times) < min(second for _, second in times) + 0.3
