"""Files of Crisscrossed Captions and ECCV Caption, in their published form, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coco_judgements import image_name, write_coco, write_cxc, write_eccv
from openvse.datasets import open_corpus
from openvse.errors import DataError
from openvse_papers.judged import caption_numbers, image_numbers, read_cxc, read_eccv_caption
from tests.naming import names, refusal


def test_numbers_of_images_and_captions(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco")
    corpus = open_corpus(f"coco:{root}", require_images=False).split("test")
    assert image_numbers(corpus).tolist() == [100, 101, 102, 103]
    assert caption_numbers(root, corpus).tolist() == [900, 901, 910, 911, 920, 921, 930, 931, 932]
    other = write_coco(tmp_path / "other", word="cat")
    assert names(refusal(DataError, caption_numbers, other, corpus), 1, "COCO_val2014_000000000100.jpg")


def test_ratings_are_read(tmp_path: Path) -> None:
    found = read_cxc(write_cxc(tmp_path), "test")
    assert found["sits"].first.tolist()[:2] == [900, 901]
    assert found["sits"].second.tolist()[-1] == 103
    assert found["sts"].ratings.tolist() == [4.5, 2.5, 3.0, 1.0, 3.5]
    assert found["sis"].second.tolist() == [101, 103, 103, 100]


def test_other_files_of_ratings_get_one_line(tmp_path: Path) -> None:
    folder = write_cxc(tmp_path / "cxc")
    assert names(refusal(DataError, read_cxc, folder, "validation"), "sits_val.csv")
    assert names(refusal(DataError, read_cxc, folder, "train"), "'train'")
    path = folder / "sis_test.csv"
    path.write_text("image1,image2,annotator_score,sampling_method\n")
    assert names(refusal(DataError, read_cxc, folder, "test"), "annotator_score", "sampling_method")
    for line in (f"{image_name(100)},{image_name(101)},6.1,i2i_csim", f"{image_name(100)},cat,1,i2i_csim", "a"):
        path.write_text(f"image1,image2,agg_score,sampling_method\n{line}\n")
        assert names(refusal(DataError, read_cxc, folder, "test"), "sis_test.csv", 2)
    path.write_text("image1,image2,agg_score,sampling_method\n")
    assert names(refusal(DataError, read_cxc, folder, "test"), path)
    path.unlink()
    assert names(refusal(DataError, read_cxc, folder, "test"), path)


def test_extended_positives_are_read(tmp_path: Path) -> None:
    found = read_eccv_caption(write_eccv(tmp_path))
    assert found.i2t == {100: (900, 901, 910), 103: (930, 920)}
    assert found.t2i == {901: (100, 102), 931: (103,)}
    assert found.captions is not None and 932 not in found.captions


def test_other_files_of_positives_get_one_line(tmp_path: Path) -> None:
    assert names(refusal(DataError, read_eccv_caption, tmp_path), "eccv_image_to_caption.json", "ECCV")
    folder = write_eccv(tmp_path)
    for content in ("[]", '{"a": [1]}', "{}", '{"1": []}', "no"):
        (folder / "eccv_caption_to_image.json").write_text(content)
        assert names(refusal(DataError, read_eccv_caption, folder), "eccv_caption_to_image.json")
    (folder / "eccv_caption_to_image.json").write_text(json.dumps({"1": ["2"]}))
    assert read_eccv_caption(folder).t2i == {1: (2,)}


def test_the_published_files_are_read() -> None:
    package = pytest.importorskip("eccv_caption", reason="the extra 'dev' is not installed")
    found = read_eccv_caption(Path(package.__file__).parent / "data")
    assert (len(found.i2t), len(found.t2i), len(found.captions or ())) == (1261, 1332, 25_000)
