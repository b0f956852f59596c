"""A text file beside each image."""

from __future__ import annotations

import os

import numpy as np
from drawn import drawn

from openvse.datasets import open_corpus
from openvse.errors import DataError
from tests.naming import names, refusal


def write(root, *names):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(drawn(number % 8))


def test_one_caption_a_line(tmp_path):
    write(tmp_path, "a.png", "deep/b.png", "c.png")
    (tmp_path / "a.txt").write_text("a dog\n\n it runs \n")
    (tmp_path / "deep" / "b.caption").write_text("\ufeffa cat\n", encoding="utf-8")
    corpus = open_corpus(tmp_path)
    assert dict(zip(corpus.captions, corpus.relevance.images, strict=True)) == {"a dog": 0, "it runs": 0, "a cat": 1}
    assert corpus.image_ids == ("a.png", "deep/b.png")
    assert corpus.problems == ("skipped 1 image(s) without a caption (first: c.png)",)


def test_a_pipe_beside_an_image_is_not_waited_for(tmp_path):
    write(tmp_path, "a.png", "b.png")
    (tmp_path / "a.txt").write_text("a dog")
    os.mkfifo(tmp_path / "b.txt")
    assert open_corpus(tmp_path).image_ids == ("a.png",)


def test_folders_that_are_splits(tmp_path):
    for split in ("train", "val", "test"):
        write(tmp_path, f"{split}/1.png")
        (tmp_path / split / "1.txt").write_text(f"for {split}")
    assert open_corpus(tmp_path).split("validation").captions == ("for val",)


def test_other_files_are_counted(tmp_path):
    write(tmp_path, "a.png", "b.mp4", "c.svg")
    (tmp_path / "a.txt").write_text("a dog")
    (problem,) = open_corpus(tmp_path).problems
    assert "1 video, 1 SVG" in problem


def test_a_clip_with_a_text_file(tmp_path):
    write(tmp_path, "a.mp4")
    (tmp_path / "a.txt").write_text("a dog")
    assert open_corpus(f"sidecars:{tmp_path}").image_ids == ("a.mp4",)


def test_a_text_file_that_is_no_caption(tmp_path):
    write(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text("word " * 300_000)
    assert names(refusal(DataError, open_corpus, tmp_path), "a.txt", "1,500,000")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert names(refusal(DataError, open_corpus, tmp_path), "a.txt", 3, "UTF")


def test_img2dataset_s_folder(tmp_path):
    """Its table of addresses names no image; the text files count."""
    write(tmp_path, "00000/000000000.png")
    (tmp_path / "00000" / "000000000.txt").write_text("a dog")
    (tmp_path / "00000" / "000000000.json").write_text('{"caption": "a dog", "url": "x"}')
    (tmp_path / "00000_stats.json").write_text("{}")
    (tmp_path / "00000.csv").write_text("url,caption,key\nx,a dog,000000000\n")
    assert open_corpus(tmp_path).captions == ("a dog",)


def test_no_text_file(tmp_path):
    write(tmp_path, "a.png")
    assert names(refusal(DataError, open_corpus, f"sidecars:{tmp_path}"), tmp_path)
    assert names(refusal(DataError, open_corpus, tmp_path), tmp_path, 1)


def test_texts_and_images_that_do_not_fit(tmp_path):
    """Names are compared as everywhere; a text without an image, and one of two images, are reported."""
    for number, name in enumerate(("a.png", "b.PNG", "b.jpg", "B\u00e4ume.png")):
        (tmp_path / name).write_bytes(drawn(number))
    for name in ("A.TXT", "b.txt", "Ba\u0308ume.txt", "gone.txt"):
        (tmp_path / name).write_text(name)
    corpus = open_corpus(tmp_path)
    said = {name: corpus.select(np.array([n])).captions for n, name in enumerate(corpus.image_ids)}
    assert said == {
        "a.png": ("A.TXT",),
        "b.PNG": ("b.txt",),
        "b.jpg": ("b.txt",),
        "B\u00e4ume.png": ("Ba\u0308ume.txt",),
    }
    cases = {problem.split(" (")[0]: problem.cases for problem in corpus.problems}
    assert cases["skipped 1 text file(s) that are not the captions of an image"] == (str(tmp_path / "gone.txt"),)
    assert cases["1 text file(s) are the captions of several images"] == (str(tmp_path / "b.txt"),)
