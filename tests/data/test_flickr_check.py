"""The check of a Flickr data set says what is missing and where its owners publish it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from openvse.data import flickr_check
from openvse.data.flickr_check import check_flickr
from openvse.errors import DataError


def write_flickr(root: Path, counts: tuple[int, int, int], captions: int = 5, extra: int = 0) -> Path:
    """Lay out a data set with so many images in train, dev and test, and some in none."""
    (root / "images").mkdir(parents=True)
    (root / "splits").mkdir()
    names = [f"{number}.jpg" for number in range(sum(counts) + extra)]
    for name in names:
        (root / "images" / name).touch()
    lines = [f"{name}#{i}\tsentence {i} of {name}" for name in names for i in range(captions)]
    (root / "captions.txt").write_text("\n".join(lines))
    start = 0
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        (root / "splits" / f"{split}.txt").write_text("\n".join(names[start : start + count]))
        start += count
    return root


def test_an_empty_folder(tmp_path):
    findings = check_flickr(tmp_path)
    assert [finding.ok for finding in findings] == [False, False]
    pictures, captions = (finding.text for finding in findings)
    assert pictures.startswith("pictures: none of Flicker8k_Dataset") and "1.1 GB" in pictures
    assert "Flickr8k.token.txt" in captions and "https://" in captions
    assert all("\n" not in finding.text for finding in findings)


def test_flickr30k_has_its_own_sources(tmp_path):
    texts = " ".join(finding.text for finding in check_flickr(tmp_path / "nothing", "flickr30k"))
    assert "4.4 GB" in texts and "DenotationGraph" in texts and "results_20130124.token" in texts


def test_the_published_counts():
    assert flickr_check._EXPECTED["flickr8k"].num_images[0] == 8091
    assert flickr_check._EXPECTED["flickr8k"].split_counts == (6000, 1000, 1000)
    assert flickr_check._EXPECTED["flickr30k"].split_counts == (29000, 1014, 1000)
    assert sum(flickr_check._EXPECTED["flickr30k"].split_counts) == 31014


def test_a_complete_copy(tmp_path, monkeypatch):
    """Of a data set a thousand times smaller; one image is in no split."""
    small = replace(flickr_check._EXPECTED["flickr8k"], num_images=(9, 8), split_counts=(6, 1, 1))
    monkeypatch.setitem(flickr_check._EXPECTED, "flickr8k", small)
    root = write_flickr(tmp_path, (6, 1, 1), extra=1)
    with (root / "captions.txt").open("a") as file:
        file.write("\n2258277193_586949ec62.jpg.1#0\tthe owners' own slip\n")
    findings = check_flickr(str(root))
    assert all(finding.ok for finding in findings)
    texts = [finding.text for finding in findings]
    assert texts[2] == "images: 9 (expected 9 or 8)"
    assert texts[3] == "captions: 45, 0 image(s) without exactly five"
    assert texts[4] == "splits: 6 / 1 / 1"
    assert texts[5].startswith("skipped 1 captioned image(s) without a picture file")


def test_wrong_counts(tmp_path):
    root = write_flickr(tmp_path, (6, 1, 1), captions=4)
    (root / "images" / "0.jpg").unlink()
    findings = {finding.text.split(":")[0]: finding for finding in check_flickr(root)}
    assert findings["pictures"].ok and findings["captions"].ok is False
    assert findings["images"].text == "images: 7 (expected 8,091 or 8,000)"
    assert findings["captions"].text == "captions: 28, 7 image(s) without exactly five"
    assert "splits: 5 / 1 / 1, expected 6000 / 1000 / 1000; get" in findings["splits"].text
    assert not any(
        finding.ok
        for finding in check_flickr(root)
        if finding.text.startswith(("images", "splits", "skipped"))
    )


def test_files_that_do_not_open(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"images": [{}]}))
    last = check_flickr(tmp_path)[-1]
    assert not last.ok and "not in Karpathy's format" in last.text


def test_unknown_name(tmp_path):
    with pytest.raises(DataError, match="no check for 'flickr9k'; did you mean 'flickr8k'"):
        check_flickr(tmp_path, "flickr9k")
