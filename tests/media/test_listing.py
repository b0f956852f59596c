"""What a folder holds, and what is left out of it, by kind."""

from __future__ import annotations

import pytest

from openvse.errors import DataError
from openvse.media.listing import list_media
from openvse.media.names import escaped


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).touch()


def test_what_is_left_out_is_counted_by_kind(tmp_path):
    touch(
        tmp_path, "a.jpg", "b/c.mp4", "b/d.MOV", "logo.svg", "scan.pdf", "raw.NEF", "notes.txt", ".hidden.mp4"
    )
    listing = list_media(tmp_path)
    assert [path.name for path in listing.paths] == ["a.jpg"]
    line = listing.left_out.describe()
    assert line.startswith("left out 2 videos, ") and "1 SVG" in line and "1 PDF" in line
    assert "vector graphics are not read, export PNG" in line and str(tmp_path / "b" / "c.mp4") in line
    assert "notes" not in line and "hidden" not in line


def test_videos_are_taken_where_they_are_wanted(tmp_path):
    touch(tmp_path, "a.jpg", "c.mp4", "x.svg")
    listing = list_media(tmp_path, videos=True)
    assert [path.name for path in listing.paths] == ["a.jpg", "c.mp4"]
    assert listing.left_out.counts() == "1 SVG"


def test_a_name_with_a_line_break_is_counted_and_escaped(tmp_path):
    touch(tmp_path, "a.jpg", "two\nlines.jpg", "two\nlines.txt")
    listing = list_media(tmp_path)
    assert len(listing.paths) == 1
    line = listing.left_out.describe()
    assert line.startswith("left out 1 with a line break in the name: rename") and "\n" not in line
    assert r"two\nlines.jpg" in line


def test_nothing_is_left_out(tmp_path):
    touch(tmp_path, "a.jpg", "a.txt")
    assert not list_media(tmp_path).left_out
    with pytest.raises(DataError, match="no such folder"):
        list_media(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a b.jpg", "a b.jpg"),
        ("é\u202f1.png", "é\u202f1.png"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("\udce9", r"\udce9"),
    ],
)
def test_odd_characters_are_escaped(name, shown):
    assert escaped(name) == shown
