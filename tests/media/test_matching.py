"""Files by the names that tables write."""

import unicodedata
from pathlib import Path

import pytest

from openvse.media.matching import find_files, paths_below


def lay_out(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def decomposed(name: str) -> str:
    return unicodedata.normalize("NFD", name)


@pytest.mark.parametrize(
    ("written", "there"),
    [
        ("Bäume/ö 1.png", decomposed("Bäume/ö 1.png")),
        (decomposed("é.png"), "é.png"),
        ("sub\\deep\\1.png", "sub/deep/1.png"),
        ("IMG_0.png", "img_0.PNG"),
        ("Photos\\BÄUME.png", decomposed("photos/bäume.png")),
        ("straße.png", "STRASSE.PNG"),
    ],
)
def test_another_way_to_write_the_name_of_one_file(tmp_path, written, there):
    lay_out(tmp_path, there, "other.png")
    found = find_files([tmp_path / written, tmp_path / "gone.png"])
    assert found.files == {tmp_path / written: tmp_path / there}
    (line,) = found.otherwise_written()
    assert line == f"{written!a} is written for the file {there!a}"


def test_the_exact_name_goes_first(tmp_path):
    lay_out(tmp_path, "é.png", decomposed("é.png"), "a.png", "A.png", "x\\y.png", "x/y.png")
    paths = list(tmp_path.rglob("*.png"))
    assert len(paths) == 6 and find_files(paths).files == {path: path for path in paths}


def test_what_may_be_several_files_is_not_guessed(tmp_path):
    lay_out(tmp_path, "a.png", "A.png", "b.png", "C.png", "d\\é.png")
    asked = {name: tmp_path / name for name in ("A.PNG", "b.png", "B.png", "c.png", "c.PNG")}
    found = find_files(asked.values())
    assert found.files == {asked["b.png"]: asked["b.png"]}
    assert set(found.near[asked["A.PNG"]]) == {tmp_path / "a.png", tmp_path / "A.png"}
    assert found.near[asked["B.png"]] == (asked["b.png"],), "b.png has a line of its own"
    assert found.near[asked["c.png"]] == found.near[asked["c.PNG"]] == (tmp_path / "C.png",)
    assert found.without_file(asked["B.png"]).endswith(f"{str(asked['b.png'])!r})")


def test_a_file_of_which_nothing_is_written_may_be_meant(tmp_path):
    lay_out(tmp_path, "A.png")
    assert find_files([tmp_path / "a.png"], [tmp_path / "A.png"]).files[tmp_path / "a.png"].name == "A.png"


def test_nothing_is_there(tmp_path):
    found = find_files([tmp_path / "no" / "a.png", tmp_path / "..\\..\\etc\\passwd", Path("a\\b.png")])
    assert (found.files, found.near) == ({}, {})


def test_names_that_no_file_can_have_find_nothing(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("a\0b/c.png", "x\0.png", "loop/a.png", "l" * 5000 + "/a.png", "\ud800/a.png"):
        path = tmp_path / name
        assert find_files(paths_below(tmp_path, [path]).values()).files == {}, name
