"""open_corpus finds out what a path holds."""

import json
from pathlib import Path

import pytest

from openvse.corpus import Corpus, Facts, Piece, Record, build_corpus
from openvse.datasets import DATASETS, open_corpus
from openvse.datasets.check import check_data, describe_data
from openvse.datasets.registry import Loader
from openvse.errors import DataError, RecipeError
from tests.naming import names


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
    images += ["hf", "parquet", "sidecars", "table", "webdataset"]
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
    ("make", "message"),
    [
        (lambda root: root / "missing", "there is no such file or folder: check the path"),
        (lambda root: root, r"image.s.*metadata\.jsonl"),
        (lambda root: f"flickr8k:{root / 'missing'}", "there is no such file or folder"),
        (lambda root: f"flickr8k:{root}", "no image folder"),
        (lambda root: f"folder:{root}", r"metadata\.jsonl.*metadata\.csv"),
    ],
)
def test_missing_and_empty(tmp_path, make, message):
    with pytest.raises(DataError, match=message) as caught:
        open_corpus(make(tmp_path))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_pictures_without_any_captions_are_counted(tmp_path):
    (tmp_path / "a.jpg").touch()
    with pytest.raises(DataError, match="1 image"):
        open_corpus(tmp_path)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "captions.xlsx"
    path.touch()
    with pytest.raises(DataError, match="data"):
        open_corpus(path)


def test_a_file_or_folder_where_the_other_is_due(tmp_path):
    with pytest.raises(DataError, match="captions"):
        open_corpus(f"table:{tmp_path}")
    path = tmp_path / "x.csv"
    path.touch()
    with pytest.raises(DataError, match=r"metadata\.jsonl.*metadata\.csv"):
        open_corpus(f"folder:{path}")


def test_an_unknown_name(tmp_path):
    with pytest.raises(RecipeError, match="'flicker8k'.*'flickr8k'"):
        open_corpus(f"flicker8k:{tmp_path}")


def open_mine(root: Path, *, require_images: bool) -> Corpus:
    """Open photographs of one's own."""
    return build_corpus("mine", [Record("a.jpg", root / "a.jpg", ["a dog"])], require_images=require_images)


MINE = Facts(
    "mine", "my photographs", (Piece("image files", ("a.jpg",), "my camera", media=True),), (), "mine"
)


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
    with pytest.raises(RecipeError, match="'mine'"):
        DATASETS.add("mine", open_mine.__class__)


def test_facts_of_ones_own_are_described_and_checked(tmp_path, plugged_in):
    with pytest.raises(RecipeError, match="'other'.*'mine'"):
        DATASETS.add("other", open_mine, facts=MINE)
    assert "other" not in DATASETS
    DATASETS.add("mine", open_mine, facts=MINE)
    assert describe_data("mine").startswith("mine: my photographs")
    assert names(check_data(f"mine:{tmp_path}")[0].text, "a.jpg")
    (tmp_path / "a.jpg").touch()
    assert all(finding.ok for finding in check_data(f"mine:{tmp_path}"))
