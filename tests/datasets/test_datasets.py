"""open_corpus finds out what a path holds."""

import json
from pathlib import Path

import pytest

from openvse.corpus import Corpus, Facts, Piece, Record, build_corpus
from openvse.datasets import DATASETS, open_corpus
from openvse.datasets.check import check_data, describe_data
from openvse.datasets.registry import Loader
from openvse.errors import DataError, RecipeError
from tests.naming import names, refusal


def folder_data(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    (root / "metadata.jsonl").write_text(json.dumps({"file_name": "a.jpg", "captions": ["a dog", "runs"]}))
    (root / "a.jpg").touch()
    return root


def flickr_data(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    (root / "images" / "a.jpg").touch()
    (root / "captions.txt").write_text("a.jpg#0\ta dog\n")
    return root


def test_the_names():
    images = ["coco", "flickr30k", "flickr8k", "folder", "openmoji", "precomputed"]
    images += ["hf", "judged", "parquet", "sidecars", "table", "webdataset"]
    clips = ["mrw", "msr_vtt", "msr_vtt_1k_a", "msvd", "tgif", "vatex"]
    questions = ["daquar", "question_folder", "vqa2"]
    assert DATASETS.names() == sorted(images + clips + questions)


def test_kinds_are_detected(tmp_path):
    root = folder_data(tmp_path / "pets")
    assert open_corpus(root).captions == ("a dog", "runs")
    (root / "pets.CSV").write_text("image,caption\na.jpg,from a table\n")
    assert open_corpus(root / "pets.CSV").captions == ("from a table",)
    (root / "pets.tsv").write_text("image\tcaption\na.jpg\tfrom tabs\n")
    assert open_corpus(str(root / "pets.tsv")).captions == ("from tabs",)
    assert open_corpus(flickr_data(tmp_path / "f")).name == "flickr8k"


def test_a_kind_can_be_named(tmp_path):
    root = flickr_data(tmp_path / "f")
    assert open_corpus(f"flickr30k:{root}").name == "flickr30k"
    assert open_corpus(f"folder:{folder_data(tmp_path / 'pets')}").image_ids == ("a.jpg",)


def test_a_path_may_hold_a_colon(tmp_path):
    root = folder_data(tmp_path / "my:pets")
    assert open_corpus(root).name == "my:pets"


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder_data(tmp_path / "pets")
    assert open_corpus("~/pets").image_ids == open_corpus("folder:~/pets").image_ids == ("a.jpg",)


def test_options_are_passed_on(tmp_path):
    root = folder_data(tmp_path)
    (root / "b.jpg").touch()
    (root / "a.jpg").unlink()
    assert open_corpus(root, require_images=False).image_ids == ("a.jpg",)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{}/missing", ["missing"]),
        ("{}", ["metadata.jsonl"]),
        ("flickr8k:{}/missing", ["missing"]),
        ("flickr8k:{}", ["Flicker8k_Dataset/"]),
        ("folder:{}", ["metadata.jsonl", "metadata.csv"]),
        ("table:{}", [".csv"]),
    ],
)
def test_missing_and_empty(tmp_path, source, named):
    assert names(refusal(DataError, open_corpus, source.format(tmp_path)), tmp_path, *named)


def test_what_holds_no_captions_is_named(tmp_path):
    (tmp_path / "a.jpg").touch()
    assert names(refusal(DataError, open_corpus, tmp_path), tmp_path, 1)
    for path in (tmp_path / "captions.xlsx", tmp_path / "x.csv"):
        path.touch()
    assert names(refusal(DataError, open_corpus, tmp_path / "captions.xlsx"), "captions.xlsx")
    assert names(refusal(DataError, open_corpus, f"folder:{path}"), "metadata.jsonl", "metadata.csv")
    assert names(refusal(RecipeError, open_corpus, f"flicker8k:{tmp_path}"), "'flicker8k'", "'flickr8k'")


def open_mine(root: Path, *, require_images: bool) -> Corpus:
    """Open photographs of one's own."""
    return build_corpus("mine", [Record("a.jpg", root / "a.jpg", ["a dog"])], require_images=require_images)


PIECE = Piece("image files", ("a.jpg",), "my camera", media=True)
MINE = Facts("mine", "my photographs", (PIECE,), (), "mine")


@pytest.fixture
def plugged_in(monkeypatch) -> None:
    """Forget after the test what it registers."""
    monkeypatch.setattr(DATASETS, "_parts", dict(DATASETS._parts))


def test_a_data_set_of_ones_own_is_a_function(tmp_path, plugged_in):
    DATASETS.add("mine", open_mine)
    assert isinstance(open_mine, Loader)
    (tmp_path / "a.jpg").touch()
    assert open_corpus(f"mine:{tmp_path}").captions == ("a dog",)
    assert describe_data("mine") == "mine: Open photographs of one's own."
    assert names(refusal(RecipeError, DATASETS.add, "mine", open_mine.__class__), "'mine'")


def test_facts_of_ones_own_are_described_and_checked(tmp_path, plugged_in):
    assert names(refusal(RecipeError, DATASETS.add, "other", open_mine, facts=MINE), "'other'", "'mine'")
    assert "other" not in DATASETS
    DATASETS.add("mine", open_mine, facts=MINE)
    assert describe_data("mine").startswith("mine: my photographs")
    assert names(check_data(f"mine:{tmp_path}")[0].text, "a.jpg")
    (tmp_path / "a.jpg").touch()
    assert all(finding.ok for finding in check_data(f"mine:{tmp_path}"))
