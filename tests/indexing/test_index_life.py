"""What an index goes through: folders that come and go, files that move, older formats, readers beside a writer."""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colour_model import ColourModel, Pixels, paint
from openvse.datasets.folder import open_folder
from openvse.errors import DataError, IndexFormatError
from openvse.indexing import Index, build, build_index, vector_files
from openvse.indexing.manifest import IndexSettings, Item
from openvse.indexing.writer import forget_folder
from openvse.media.listing import AGAIN
from openvse.media.matching import composed
from openvse.search import Query, SearchEngine
from tests.naming import names, refusal


def ids(out: Path) -> list[str]:
    return [item.id for item in Index.open(out, check=True).items]


@pytest.fixture
def out(model: ColourModel, photos: Path, tmp_path: Path) -> Path:
    build_index(model, photos, tmp_path / "index")
    model.batches.clear()
    return tmp_path / "index"


@pytest.fixture
def usb(tmp_path: Path) -> Path:
    """Another folder of images, on a drive that can be removed."""
    for name in ("red", "white"):
        paint(tmp_path / "media" / "usb" / f"u_{name}.png", name)
    return tmp_path / "media" / "usb"


def test_moved_copied_and_touched_files_are_recognised(model: ColourModel, photos: Path, out: Path) -> None:
    before = dict(zip(ids(out), Index.open(out).vectors, strict=True))
    (photos / "red.png").rename(photos / "deeper" / "renamed.png")
    shutil.copy(photos / "green.png", photos / "copy.png")
    os.utime(photos / "blue.png", ns=(5, 5))
    report = build_index(model, photos, out)
    assert (report.count, report.reused, report.recognised, report.removed) == (5, 2, 3, 1)
    assert model.encoded == []
    after = dict(zip(ids(out), Index.open(out).vectors, strict=True))
    for now, then in (("deeper/renamed.png", "red.png"), ("copy.png", "green.png"), ("blue.png", "blue.png")):
        assert np.array_equal(after[now], before[then])
    assert build_index(model, photos, out).reused == 5


def test_several_folders_and_what_they_are_called(model: ColourModel, photos: Path, usb: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    assert build_index(model, [photos, usb], out).count == 6
    index = Index.open(out)
    assert [item.id for item in index.items][-2:] == ["usb:u_red.png", "usb:u_white.png"]
    assert index.image_path(5) == usb / "u_white.png"
    (hit,) = SearchEngine(model, index).search("white", top_k=1)
    assert hit.path in (usb / "u_white.png", photos / "deeper" / "white.png")
    paint(usb / "u_new.png", "blue")
    report = build_index(model, usb, out)  # one of them by itself
    assert (report.count, report.reused, report.removed) == (7, 2, 0)
    with pytest.raises(IndexFormatError, match="--add"):
        build_index(model, paint(tmp_path / "third" / "a.png", "red").parent, out)
    assert build_index(model, tmp_path / "third", out, add=True).count == 8
    forget_folder(out, usb)
    assert len(ids(out)) == 5
    for given, wanted in ((usb, photos), (photos / "red.png", "--ignore"), (photos / "deeper", "--ignore")):
        with pytest.raises(IndexFormatError, match=re.escape(str(wanted))) as refused:
            forget_folder(out, given)
        assert str(given) in str(refused.value) and str(photos) in str(refused.value)
    assert len(ids(out)) == 5


def test_folders_inside_each_other_are_refused(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="photos.*deeper"):
        build_index(model, [photos, photos / "deeper"], tmp_path / "index")


@pytest.mark.parametrize("state", ["gone", "empty"])
def test_a_drive_that_is_not_connected_keeps_its_images(
    model: ColourModel, photos: Path, usb: Path, tmp_path: Path, state: str
) -> None:
    out = tmp_path / "index"
    build_index(model, [photos, usb], out)
    away = usb.rename(tmp_path / "away")
    if state == "empty":
        usb.mkdir()
    report = build_index(model, [photos, usb], out)
    assert (report.count, report.removed) == (6, 0)
    ((path, reason),) = report.unreached
    assert path == usb and reason
    if state == "empty":
        usb.rmdir()
    away.rename(usb)
    assert build_index(model, [photos, usb], out).unreached == []


class UnpluggedModel(ColourModel):
    """Pulls a drive out while its images are read."""

    drive: Path

    def read_image(self, image: Path) -> Pixels:
        with suppress(FileNotFoundError):
            self.drive.rename(self.drive.with_name("away"))
        return super().read_image(image)


def test_a_drive_that_is_pulled_out_loses_nothing(model: ColourModel, usb: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(model, usb, out)
    paint(usb / "u_new.png", "blue")
    paint(usb / "u_red.png", "blue")
    puller = UnpluggedModel()
    puller.drive = usb
    assert names(refusal(DataError, build_index, puller, usb, out), "usb")
    assert ids(out) == ["u_red.png", "u_white.png"]


def test_a_folder_that_cannot_be_listed_keeps_its_images(
    model: ColourModel, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("deeper"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = build_index(model, photos, out)
    assert (report.count, report.removed) == (4, 0)
    assert [path for path, _ in report.unreached] == [photos / "deeper"]


def test_ignore_rules_are_remembered(model: ColourModel, photos: Path, out: Path) -> None:
    (photos / ".openvseignore").write_text("# not these\nred.*\n")
    assert build_index(model, photos, out, settings=IndexSettings(ignore=["deeper/"])).removed == 2
    assert ids(out) == ["blue.png", "green.png"]
    assert build_index(model, photos, out).reused == 2
    assert build_index(model, photos, out, settings=IndexSettings(ignore=[])).count == 3


@pytest.mark.parametrize("other", [False, True], ids=["dtype", "model"])
def test_an_index_that_is_replaced_keeps_the_settings(
    model: ColourModel, photos: Path, out: Path, usb: Path, other: bool
) -> None:
    (photos / "usb").symlink_to(usb)
    build_index(model, photos, out, settings=IndexSettings(ignore=["deeper/"], follow_links=True))
    before = ids(out)
    replace: dict[str, Any] = {"settings": IndexSettings(dtype="float16")}
    if other:
        model.fingerprint, replace = "another", {"overwrite": True}
    for again in (replace, {}):
        build_index(model, photos, out, **again)
        assert ids(out) == before == ["blue.png", "green.png", "red.png", "usb/u_red.png", "usb/u_white.png"]


def test_followed_links_are_remembered_and_kept(model: ColourModel, photos: Path, out: Path, usb: Path) -> None:
    (photos / "2023").symlink_to(usb)
    before = ids(out)
    assert build_index(model, photos, out).count == 4
    report = build_index(model, photos, out, settings=IndexSettings(follow_links=True))
    assert ids(out) == sorted([*before, "2023/u_red.png", "2023/u_white.png"]) and not report.left_out
    assert build_index(model, photos, out).reused == 6
    away = usb.rename(usb.parent / "away")
    report = build_index(model, photos, out)
    assert (report.reused, report.removed, [path for path, _ in report.unreached]) == (6, 0, [photos / "2023"])
    usb.mkdir()
    assert build_index(model, photos, out).removed == 0
    (photos / "2024").symlink_to(away)
    (photos / "2023").unlink()
    report = build_index(model, photos, out)
    assert (report.recognised, report.removed) == (2, 2) and "2024/u_red.png" in ids(out)
    assert build_index(model, photos, out, settings=IndexSettings(follow_links=False)).removed == 2
    assert build_index(model, photos, out).count == 4 and ids(out) == before


def test_a_link_into_another_root_adds_nothing(model: ColourModel, photos: Path, out: Path, usb: Path) -> None:
    (photos / "usb").symlink_to(usb)
    build_index(model, usb, out, settings=IndexSettings(follow_links=True), add=True)
    report = build_index(model, photos, out)
    assert (report.count, report.removed) == (6, 0) and "usb:u_red.png" in ids(out)


def test_what_the_user_says_is_kept_with_the_items(model: ColourModel, photos: Path, out: Path) -> None:
    lines = ['{"file_name": "red.png", "year": 2020}', "no json", '{"file_name": "gone.png"}', "[1]"]
    (photos / "metadata.jsonl").write_text("\n".join(lines))
    first, second = build_index(model, photos, out).metadata_problems
    assert names(first, photos / "metadata.jsonl", 2, 2) and names(second, 1, "gone.png")
    assert said(out) == {"red.png": {"file_name": "red.png", "year": 2020}}
    paint(photos / "new.png", "red")
    with (photos / "metadata.jsonl").open("a") as file:
        file.write('\n{"file_name": "new.png", "tags": ["dog", "snow"]}')
    build_index(model, photos, out)
    assert said(out).keys() == {"red.png", "new.png"}
    (photos / "metadata.jsonl").unlink()
    (photos / "metadata.csv").write_text('File_name;tags;year\nred.png;"[""dog"", ""snow""]";2020\nnew.png;1\n')
    (problem,) = build_index(model, photos, out).metadata_problems
    assert names(problem, photos / "metadata.csv", 1, 3)
    assert said(out) == {"red.png": {"file_name": "red.png", "tags": ["dog", "snow"], "year": "2020"}}
    (photos / "metadata.csv").unlink()
    build_index(model, photos, out)
    assert said(out) == {}


def test_a_line_means_the_same_file_for_an_index_and_for_training(
    model: ColourModel, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "red.png").rename(photos / "caf\u00e9.png")
    (photos / "link").symlink_to(photos / "deeper")
    monkeypatch.chdir(photos.parent)
    for name, item in (
        ("BLUE.png", "blue.png"),
        ("./green.png", "green.png"),
        (str(photos / "green.png"), "green.png"),
        ("../photos/deeper/../green.png", "green.png"),
        ("cafe\u0301.png", "caf\u00e9.png"),
        (str(photos / "link" / ".." / "CAFE\u0301.png"), "caf\u00e9.png"),
        (r"deeper\white.png", "deeper/white.png"),
        (str(photos / "link" / "white.png"), "deeper/white.png"),
    ):
        others = [{"file_name": each, "caption": "x"} for each in ("gone.png", "/etc/passwd", "deeper", "")]
        lines = [*others, {"file_name": name, "caption": name}]
        (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
        first, *_ = build_index(model, photos, out).metadata_problems
        assert names(first, 4)
        assert said(out) == {item: lines[-1]}
        (photos / "metadata.jsonl").write_text(json.dumps(lines[-1]))
        for root in (photos, Path("photos")):
            corpus = open_folder(root)
            assert corpus.image_paths == (root / item,)
            spelled = corpus.image_ids[0].replace("\\", "/")  # spelled as in the line, and below the folder
            assert composed(spelled).casefold() == item
            assert any(names(line, 3) for line in corpus.problems)


def test_lines_about_files_that_are_away_are_kept(model: ColourModel, photos: Path, out: Path) -> None:
    lines = [{"file_name": name, "caption": name} for name in (str(photos / "deeper/white.png"), "green.png")]
    (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"file_name": "DEEPER/WHITE.PNG"}])))
    build_index(model, photos, out)
    before = said(out)
    (photos / "deeper").rename(photos / ".away")
    paint(photos / "new.png", "blue")
    build_index(model, photos, out)
    assert said(out) == before
    (photos / ".away").rename(photos / "deeper")
    (photos / "metadata.jsonl").write_text(json.dumps({"file_name": "DEEPER/WHITE.PNG", "caption": "case"}))
    build_index(model, photos, out)
    (photos / "deeper").rename(photos / ".away")
    paint(photos / "newer.png", "blue")
    build_index(model, photos, out)
    (photos / ".away").rename(photos / "deeper")
    build_index(model, photos, out)
    assert list(said(out)) == ["deeper/white.png"], "it is read again once the file is back"


def said(out: Path) -> dict[str, object]:
    from openvse.indexing.database import Database

    with Database(out / Index.open(out).manifest.items) as database:
        rows = database.read("SELECT id, metadata FROM items WHERE metadata IS NOT NULL")
    return {str(item_id): json.loads(str(metadata)) for item_id, metadata in rows}


def test_compaction_leaves_what_is_needed(model: ColourModel, photos: Path, out: Path) -> None:
    reader = Index.open(out)
    before = np.array(reader.vectors)
    (photos / "blue.png").unlink()
    os.utime(photos / "green.png", ns=(7, 7))
    build_index(model, photos, out)
    changed = Index.open(out)
    assert build_index(model, photos, out, check=True).compacted == 2
    index = Index.open(out, check=True)
    (file,) = out.glob("vectors-*.npy")
    assert np.array_equal(np.load(file), index.vectors) and np.array_equal(index.vectors, changed.vectors)
    assert build_index(model, photos, out, check=True).compacted == 0
    assert np.array_equal(reader.vectors, before)  # a reader goes on with what it opened


def test_an_index_that_is_mostly_waste_is_compacted_by_itself(
    model: ColourModel, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_FEW_ROWS", 2)
    for turn in range(1, 3):
        for path in photos.rglob("*.png"):
            os.utime(path, ns=(turn, turn))
        report = build_index(model, photos, out)
    assert report.compacted == 8
    assert sum(len(segment.vectors) for segment in Index.open(out, check=True).vector_files) == 4


def test_several_files_are_one_index(
    model: ColourModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(model, photos, tmp_path / "whole")
    monkeypatch.setattr(vector_files, "FILE_BYTES", 20)
    build_index(model, photos, tmp_path / "parts", batch_size=1)
    whole, parts = Index.open(tmp_path / "whole"), Index.open(tmp_path / "parts", check=True)
    assert len(parts.vector_files) == 2 and parts.items == whole.items
    assert np.array_equal(parts.vectors, whole.vectors)
    for word in ("red", "blue"):
        assert SearchEngine(model, parts).search(word) == SearchEngine(model, whole).search(word)


def test_an_index_that_may_not_be_written_is_searched(model: ColourModel, out: Path) -> None:
    for path in [*out.iterdir(), out]:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert SearchEngine(model, Index.open(out)).search("red", 1)[0].id == "red.png"
    finally:
        out.chmod(0o755)


def test_a_file_that_changes_while_it_is_read_is_embedded_again(photos: Path, tmp_path: Path) -> None:
    """It gets another content of the same size between the embedding and the hash."""
    red, blue = photos / "red.png", (photos / "blue.png").read_bytes()
    size = max(len(blue), red.stat().st_size) + 1
    red.write_bytes(red.read_bytes().ljust(size, b"0"))

    class Changing(ColourModel):
        def read_image(self, image: Path) -> Pixels:
            pixels = super().read_image(image)
            if image == red:
                red.write_bytes(blue.ljust(size, b"0"))
                os.utime(red, ns=(9, 9))
            return pixels

    build_index(Changing(), photos, tmp_path / "index")
    report = build_index(ColourModel(), photos, tmp_path / "index")
    assert (report.reused, report.recognised) == (3, 0)
    index = Index.open(tmp_path / "index")
    assert index.vectors[index.position("red.png")].tolist() == index.vectors[index.position("blue.png")].tolist()


def test_a_table_is_no_file_of_sentences(model: ColourModel, tmp_path: Path) -> None:
    for name, content, line in (
        ("x.csv", "file_name,caption\na.png,red\n", ""),
        ("x.jsonl", '{"caption": "red"}\n', ""),
        ("x.txt", 'red\n{"caption": "red"}\n', " 2"),
        ("y.txt", "['red', 'blue']\n", " 1"),
    ):
        (tmp_path / name).write_text(content)
        assert names(refusal(DataError, build_index, model, tmp_path / name, tmp_path / "index"), name, line)


def test_sentences_are_found_by_images(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "captions.txt", tmp_path / "sentences"
    text.write_text("red\nblue\n\n red \ngreen\n")
    assert build_index(model, text, out).count == 3
    index = Index.open(out)
    assert index.items == (Item("blue", 0, 4), Item("green", 0, 5), Item("red", 0, 3))
    hits = SearchEngine(model, index).search(Query(image=photos / "red.png"), top_k=1)
    assert (hits[0].id, hits[0].path) == ("red", text)
    text.write_text("white\nred\n")
    report = build_index(model, text, out)
    assert (report.count, report.reused, report.removed) == (2, 1, 2)
    text.write_text("")
    assert build_index(model, text, out).count == 2
    assert names(refusal(IndexFormatError, build_index, model, photos, out), "--out", "--overwrite")


def test_a_file_turned_in_place_is_embedded_again_and_a_touched_one_recognised(
    model: ColourModel, photos: Path, tmp_path: Path
) -> None:
    build_index(model, photos, tmp_path / "index")
    red, green = photos / "red.png", photos / "green.png"
    before = red.stat()
    red.write_bytes(red.read_bytes()[:-1] + b"?")  # of the same time and size
    os.utime(red, ns=(before.st_atime_ns, before.st_mtime_ns))
    green.chmod(0o600)
    model.reads.clear()
    report = build_index(model, photos, tmp_path / "index")
    assert (model.reads, report.recognised, report.reused) == (["red.png"], 1, report.count - 2)
    assert build_index(model, photos, tmp_path / "index").reused == report.count


def test_further_names_of_a_file_are_no_items(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    first = build_index(model, photos, tmp_path / "index")
    (photos / "0.png").symlink_to(photos / "red.png")
    (photos / "hard.png").hardlink_to(photos / "green.png")
    again = build_index(model, photos, tmp_path / "index")
    assert again.count == first.count
    assert [path.name for path in again.left_out.files[AGAIN]] == ["0.png", "hard.png"]


def test_ids_of_two_folders_never_meet(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    paint(photos / "more:blue.png", "red")
    paint(more / "blue.png", "blue")
    both = build_index(model, [photos, more], tmp_path / "both")
    assert [path for path, _ in both.failed] == [photos / "more:blue.png"]
    assert both.count == 5
    one = build_index(model, photos, tmp_path / "index")
    assert build_index(model, more, tmp_path / "index", add=True).count == one.count + 1 == 6
    assert "more-2:blue.png" in Index.open(tmp_path / "index").table.ids
