"""A folder inside an indexed one that is gone or empty, as the place of a drive without it, keeps its items."""

import shlex
import shutil
from pathlib import Path

import pytest

from colour_model import ColourModel, paint
from openvse.errors import IndexFormatError
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import IndexSettings
from openvse.indexing.writer import forget_folder
from tests.naming import names, refusal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with three images below ``nas``, and one beside it."""
    nas = {"nas/red.png": "red", "nas/2023/white.png": "white", "nas/2023/may/blue.png": "blue"}
    for name, colour in {"green.png": "green", **nas}.items():
        paint(tmp_path / "my photos" / name, colour)
    return tmp_path / "my photos"


@pytest.fixture
def out(model: ColourModel, home: Path, tmp_path: Path) -> Path:
    build_index(model, home, tmp_path / "index")
    model.batches.clear()
    return tmp_path / "index"


def ids(out: Path) -> list[str]:
    return [item.id for item in Index.open(out, check=True).items]


@pytest.mark.parametrize("left", ["", "nas/", "nas/2023/may/", "nas/.DS_Store", "link"])
def test_its_items_are_kept_until_they_are_forgotten(
    model: ColourModel, home: Path, out: Path, tmp_path: Path, left: str
) -> None:
    before, nas, away = ids(out), home / "nas", tmp_path / "away"
    for forgets in (False, True):
        nas.rename(away)
        if left == "link":
            (tmp_path / "offline").mkdir(exist_ok=True)
            nas.symlink_to(tmp_path / "offline")
        elif left:
            (home / left).parent.mkdir(parents=True, exist_ok=True)
            (home / left).touch() if not left.endswith("/") else (home / left).mkdir()
        for _ in range(2):
            report = build_index(model, home, out, settings=IndexSettings(follow_links=left == "link"))
            assert (report.count, report.reused, report.removed, ids(out)) == (4, 4, 0, before)
            ((path, reason),) = report.unreached
            assert path == nas and report.is_unchanged
        *command, option, folder = shlex.split(reason[reason.index("openvse ") :])
        assert command == ["openvse", "index", "MODEL", str(home), "--out", str(out)] and option == "--forget"
        if forgets:
            forget_folder(out, folder)
            report = build_index(model, home, out)
            assert (report.count, report.unreached, ids(out)) == (1, [], ["green.png"])
        else:
            nas.unlink() if left == "link" else shutil.rmtree(nas, ignore_errors=True)
            away.rename(nas)
            assert names(refusal(IndexFormatError, forget_folder, out, folder), "--ignore")
            assert build_index(model, home, out).reused == 4
    assert model.encoded == []


def test_the_uppermost_of_several_is_named(model: ColourModel, home: Path, out: Path) -> None:
    shutil.rmtree(home / "nas" / "2023" / "may")
    (home / "nas" / "red.png").unlink()
    report = build_index(model, home, out)
    assert (report.removed, [path for path, _ in report.unreached]) == (1, [home / "nas" / "2023" / "may"])
    shutil.rmtree(home / "nas" / "2023")
    assert [path for path, _ in build_index(model, home, out).unreached] == [home / "nas"]
    (home / "green.png").unlink()
    assert [path for path, _ in build_index(model, home, out).unreached] == [home]
    forget_folder(out, home / "nas" / "2023" / "may")
    assert ids(out) == ["green.png", "nas/2023/white.png"]


def test_the_last_items_are_not_forgotten(model: ColourModel, home: Path, tmp_path: Path) -> None:
    (home / "green.png").unlink()
    build_index(model, home, tmp_path / "index")
    shutil.rmtree(home / "nas")
    assert names(refusal(IndexFormatError, forget_folder, tmp_path / "index", home / "nas"), "my photos")


def test_files_that_were_moved_removed_or_ignored_go(model: ColourModel, home: Path, out: Path) -> None:
    (home / "nas").rename(home / "nas2")
    report = build_index(model, home, out)
    assert (report.recognised, report.removed, report.unreached, model.encoded) == (3, 3, [], [])
    (home / "nas2" / "2023").rename(home / "nas2" / "2024")  # and one of its files elsewhere, another nowhere
    (home / "nas2" / "2024" / "white.png").rename(home / "w.png")
    (home / "nas2" / "2024" / "may" / "blue.png").unlink()
    report = build_index(model, home, out)
    assert (report.recognised, [path for path, _ in report.unreached]) == (1, [home / "nas2" / "2023"])
    assert ids(out) == ["green.png", "nas2/2023/may/blue.png", "nas2/red.png", "w.png"]
    (home / "nas2" / "notes.txt").write_text("what is left is no empty place")
    (home / "nas2" / "red.png").unlink()
    assert build_index(model, home, out).removed == 1
    paint(home / "nas2" / "2023" / "may" / "blue.png", "blue")
    assert build_index(model, home, out, settings=IndexSettings(ignore=["2023/"])).removed == 1
    assert ids(out) == ["green.png", "w.png"]


def test_a_copy_that_was_there_before_is_no_move(model: ColourModel, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    shutil.copytree(home / "nas", home / "backup")
    build_index(model, home, out)
    for folder, removed in (("nas", 0), ("backup", 0)):
        shutil.rmtree(home / folder)
        report = build_index(model, home, out)
        assert (report.count, report.removed) == (7, removed)
    assert len(report.unreached) == 2
