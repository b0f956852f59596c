"""Folders of pictures with metadata beside them."""

import json
from pathlib import Path

import pytest

from openvse.datasets.folder import metadata_files, open_folder
from openvse.errors import DataError
from tests.naming import names, refusal


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
    assert names(refusal(DataError, open_folder, root), "gone.jpg")
    assert open_folder(root, require_images=False).image_ids == ("gone.jpg",)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"file_name": "b.jpg", "text": ', []),
        ('{"text": "nameless"}', ['"file_name"']),
        ('["b.jpg", "text"]', ['"file_name"']),
        ('{"file_name": "b.jpg", "captions": ["x", 3]}', ["'captions'", 3, 2]),
        ('{"file_name": "b.jpg", "text": 5}', ["'text'", 5]),
        ('{"file_name": "b.jpg", "captions": {"en": "x"}}', ["'captions'"]),
        ('{"file_name": ["b.jpg"], "text": "x"}', ["'file_name'"]),
        ('{"file_name": "b.jpg", "text": "x", "split": 5}', ["'split'", 5]),
        ('{"file_name": "b.jpg", "text": "x", "split": "trian"}', ["'split'", "'trian'"]),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, line, named):
    path = tmp_path / "metadata.jsonl"
    path.write_text('{"file_name": "a.jpg", "text": "ok"}\n\n' + line + "\n")
    assert names(refusal(DataError, open_folder, tmp_path), path, 3, *named)


def test_no_metadata(tmp_path):
    assert metadata_files(tmp_path) == []
    assert names(refusal(DataError, open_folder, tmp_path), "metadata.jsonl", "metadata.csv")
