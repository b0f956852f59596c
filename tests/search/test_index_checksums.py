"""A byte that changed on the disk is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from colour_model import ColourModel

from openvse.errors import IndexFormatError
from openvse.search import Index, build_index
from openvse.search import index as layout


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def out(model: ColourModel, photos: Path, tmp_path: Path) -> Path:
    build_index(model, photos, tmp_path / "index")
    model.batches.clear()
    return tmp_path / "index"


@pytest.mark.parametrize(("pattern", "place"), [("vectors-*", -1), ("vectors-*", 130), ("items-*", 12)])
def test_a_small_index_is_checked_when_it_is_opened(out: Path, pattern: str, place: int) -> None:
    (path,) = out.glob(pattern)
    flip(path, place)
    with pytest.raises(IndexFormatError, match=f"{path.name} does not match its checksum"):
        Index.open(out)


def test_a_large_index_is_checked_on_request_and_before_it_is_reused(
    model: ColourModel, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SMALL_BYTES", 0)
    sound = Index.open(out, check=True).vectors.copy()
    (path,) = out.glob("vectors-*")
    flip(path, -1)
    Index.open(out)
    with pytest.raises(IndexFormatError, match="checksum"):
        Index.open(out, check=True)
    assert build_index(model, photos, out).reused == 0
    assert (Index.open(out, check=True).vectors == sound).all()


@pytest.mark.parametrize("pattern", ["vectors-*", "items-*"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY"])
def test_a_file_without_its_content_is_repaired(
    model: ColourModel, photos: Path, out: Path, pattern: str, content: bytes
) -> None:
    (path,) = out.glob(pattern)
    path.write_bytes(content)
    with pytest.raises(IndexFormatError, match="is damaged .*run 'openvse index' again"):
        Index.open(out)
    assert build_index(model, photos, out).reused == 0
    assert len(Index.open(out)) == 4
