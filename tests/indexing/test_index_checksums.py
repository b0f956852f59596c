"""A byte that changed on the disk is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from colour_model import ColourModel
from openvse.errors import IndexFormatError
from openvse.indexing import Index, build_index, maintenance
from openvse.indexing import index as layout


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def out(model: ColourModel, photos: Path, tmp_path: Path) -> Path:
    build_index(model, photos, tmp_path / "index")
    model.batches.clear()
    return tmp_path / "index"


@pytest.mark.parametrize("place", [-1, 130])
def test_a_small_index_is_checked_when_it_is_opened(out: Path, place: int) -> None:
    (path,) = out.glob("vectors-*")
    flip(path, place)
    with pytest.raises(IndexFormatError, match="1 of its items do not match their checksums, first "):
        Index.open(out)


def test_a_name_that_changed_is_noticed(out: Path) -> None:
    (path,) = out.glob("items-*")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blue.png", b"blua.png"))
    with pytest.raises(IndexFormatError, match="blua.png"):
        Index.open(out)


def test_a_large_index_is_checked_on_request(
    model: ColourModel, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is damaged is embedded again, and nothing else."""
    monkeypatch.setattr(layout, "SMALL_BYTES", 0)
    monkeypatch.setattr(maintenance, "SMALL_BYTES", 0)
    sound = Index.open(out, check=True).vectors.copy()
    (path,) = out.glob("vectors-*")
    flip(path, -1)
    Index.open(out)
    with pytest.raises(IndexFormatError, match="checksum"):
        Index.open(out, check=True)
    assert build_index(model, photos, out).reused == 4  # nothing that is not needed is read
    assert build_index(model, photos, out, check=True).reused == 3
    assert (Index.open(out, check=True).vectors == sound).all()


@pytest.mark.parametrize("pattern", ["vectors-*", "items-*"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"SQLite format 3\0"])
def test_a_file_without_its_content_is_repaired(
    model: ColourModel, photos: Path, out: Path, pattern: str, content: bytes
) -> None:
    (path,) = out.glob(pattern)
    path.write_bytes(content)
    with pytest.raises(IndexFormatError, match="'openvse index'"):
        Index.open(out)
    assert build_index(model, photos, out).reused == 0
    assert len(Index.open(out, check=True)) == 4
    assert len([*out.iterdir()]) == 4
