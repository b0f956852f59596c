"""Folders of pictures with metadata beside them."""

import json
from pathlib import Path

import pytest

from openvse.datasets.folder import metadata_files, open_folder
from openvse.errors import DataError


def write(folder: Path, *entries: dict, pictures: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata.jsonl").write_text("\n".join(json.dumps(entry) for entry in entries))
    for entry in entries if pictures else ():
        (folder / entry["file_name"]).parent.mkdir(exist_ok=True)
        (folder / entry["file_name"]).touch()
    return folder


def test_captions_text_and_caption(tmp_path):
    root = write(
        tmp_path / "pets",
        {"file_name": "a.jpg", "captions": ["a dog", "it runs"], "split": "train"},
        {"file_name": "sub/b.jpg", "text": "a cat", "split": "val"},
        {"file_name": "c.jpg", "caption": "a bird", "split": None},
    )
    corpus = open_folder(root)
    assert corpus.name == "pets"
    assert corpus.image_ids == ("a.jpg", "sub/b.jpg", "c.jpg")
    assert corpus.captions == ("a dog", "it runs", "a cat", "a bird")
    assert corpus.splits == ("train", "validation", "")
    assert corpus.image_paths[1] == root / "sub" / "b.jpg"
    assert corpus.problems == ()


def test_split_subfolders(tmp_path):
    for split in ("train", "validation", "test"):
        write(tmp_path / split, {"file_name": "1.jpg", "text": f"a picture for {split}"})
    (tmp_path / "other").mkdir()
    corpus = open_folder(tmp_path)
    assert corpus.image_ids == ("test/1.jpg", "train/1.jpg", "validation/1.jpg")
    assert corpus.splits == ("test", "train", "validation")
    assert corpus.split("dev").captions == ("a picture for validation",)


def test_a_table_beside_the_pictures(tmp_path):
    (tmp_path / "metadata.csv").write_text("file_name,text\na.jpg,one\na.jpg,two\n")
    (tmp_path / "a.jpg").touch()
    corpus = open_folder(tmp_path)
    assert corpus.captions == ("one", "two")
    (tmp_path / "train").mkdir()
    (tmp_path / "metadata.csv").rename(tmp_path / "train" / "metadata.csv")
    (tmp_path / "a.jpg").rename(tmp_path / "train" / "a.jpg")
    assert open_folder(tmp_path).split("train").image_ids == ("train/a.jpg",)


def test_json_lines_go_before_a_table(tmp_path):
    write(tmp_path, {"file_name": "a.jpg", "text": "from json"})
    (tmp_path / "metadata.csv").write_text("file_name,text\na.jpg,from csv\n")
    assert open_folder(tmp_path).captions == ("from json",)
    assert metadata_files(tmp_path) == [tmp_path / "metadata.jsonl"]


def test_pictures_without_captions_are_reported(tmp_path):
    root = write(tmp_path, {"file_name": "a.jpg", "text": "fine"}, {"file_name": "b.jpg"})
    (root / "c.png").touch()
    corpus = open_folder(root)
    assert corpus.image_ids == ("a.jpg",)
    assert corpus.problems == ("skipped 2 image(s) without a caption (first: b.jpg)",)


def test_captions_without_pictures_are_reported(tmp_path):
    root = write(tmp_path, {"file_name": "gone.jpg", "text": "a ghost"}, pictures=False)
    with pytest.raises(DataError, match="1 captioned"):
        open_folder(root)
    assert open_folder(root, require_images=False).image_ids == ("gone.jpg",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"file_name": "b.jpg", "text": ', "line 3: not JSON"),
        ('{"text": "nameless"}', 'line 3: write {"file_name"'),
        ('["b.jpg", "text"]', 'line 3: write {"file_name"'),
        (
            '{"file_name": "b.jpg", "captions": ["x", 3]}',
            "3.*'captions'.*3.*2",
        ),
        (
            '{"file_name": "b.jpg", "text": 5}',
            "3.*'text'.*5",
        ),
        (
            '{"file_name": "b.jpg", "captions": {"en": "x"}}',
            "3.*'captions'",
        ),
        (
            '{"file_name": ["b.jpg"], "text": "x"}',
            "3.*'file_name'",
        ),
        (
            '{"file_name": "b.jpg", "text": "x", "split": 5}',
            "3.*'split'.*5",
        ),
        (
            '{"file_name": "b.jpg", "text": "x", "split": "trian"}',
            "3.*'split'.*'trian'",
        ),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, line, message):
    path = tmp_path / "metadata.jsonl"
    path.write_text('{"file_name": "a.jpg", "text": "ok"}\n\n' + line + "\n")
    with pytest.raises(DataError, match=message) as caught:
        open_folder(tmp_path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_image_listed_twice_has_the_captions_of_both_lines(tmp_path):
    lines = [
        {"file_name": name, "text": text} for name, text in (("a.jpg", "x"), ("b.jpg", "y"), ("a.jpg", "z"))
    ]
    corpus = open_folder(write(tmp_path, *lines))
    assert (corpus.image_ids, corpus.captions) == (("a.jpg", "b.jpg"), ("x", "z", "y"))


def test_no_metadata(tmp_path):
    assert metadata_files(tmp_path) == []
    with pytest.raises(DataError, match="metadata.jsonl.*metadata.csv"):
        open_folder(tmp_path)
