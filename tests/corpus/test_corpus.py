"""Corpora: checked when built, selected by image, split by name."""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.corpus.corpus import Corpus, Record, build_corpus, merge_identical
from openvse.errors import DataError
from openvse.types import Relevance
from tests.naming import names, refusal
from toy_data import make_corpus


def records(*captions: list[str], splits: list[str] | None = None) -> list[Record]:
    names = [f"{number}.jpg" for number in range(len(captions))]
    return [
        Record(name, Path(name), texts, splits[number] if splits else "")
        for number, (name, texts) in enumerate(zip(names, captions, strict=True))
    ]


def build(*args, **options) -> Corpus:
    return build_corpus("toy", records(*args, **options), require_images=False)


def pairs_of(corpus: Corpus) -> set[tuple[str, str]]:
    relevance = corpus.relevance
    return {
        (corpus.image_ids[i], corpus.captions[t])
        for i, t in zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True)
    }


def test_every_caption_is_a_text_of_its_own():
    corpus = build(["a dog", "it runs"], ["a dog"])
    assert corpus.image_ids == ("0.jpg", "1.jpg") and len(corpus) == 2
    assert corpus.captions == ("a dog", "it runs", "a dog")
    np.testing.assert_array_equal(corpus.relevance.images, [0, 0, 1])
    np.testing.assert_array_equal(corpus.relevance.texts, [0, 1, 2])
    assert (corpus.relevance.num_images, corpus.relevance.num_texts) == (2, 3)
    assert corpus.problems == ()


def test_merged_captions_are_relevant_to_all_their_images():
    corpus = merge_identical(build_corpus("toy", records(["chef", "man cook"], ["chef", "chef"]), require_images=False))
    assert corpus.captions == ("chef", "man cook")
    assert pairs_of(corpus) == {("0.jpg", "chef"), ("0.jpg", "man cook"), ("1.jpg", "chef")}
    assert len(corpus.relevance.images) == 3
    assert corpus.select(np.array([1])).captions == ("chef",)


def test_white_space_is_tidied():
    assert build(["  a\tdog \n runs "]).captions == ("a dog runs",)


def test_what_cannot_be_used_is_counted_and_skipped(tmp_path):
    for name in ("a.jpg", "c.jpg", "d.jpg"):
        (tmp_path / name).touch()
    found = [
        Record("a.jpg", tmp_path / "a.jpg", ["good", "  "]),
        Record("b.jpg", tmp_path / "b.jpg", ["its picture is missing"]),
        Record("c.jpg", tmp_path / "c.jpg", []),
        Record("d.jpg", tmp_path / "d.jpg", [""]),
        Record("e.jpg", tmp_path / "nowhere" / "e.jpg", ["no folder"]),
    ]
    corpus = build_corpus("toy", found)
    assert corpus.image_ids == ("a.jpg",)
    assert corpus.captions == ("good",)
    named = (tmp_path / "b.jpg", "a.jpg", "c.jpg")
    assert all(names(problem, 2, name) for problem, name in zip(corpus.problems, named, strict=True))
    assert "b.jpg" in build_corpus("toy", found, require_images=False).image_ids


def test_nothing_left():
    assert names(refusal(DataError, build), "toy")
    assert names(refusal(DataError, build, [], []), 2)


def test_a_name_of_two_files_is_refused():
    twice = [Record("a.jpg", Path("x/a.jpg"), ["x"]), Record("a.jpg", Path("y/a.jpg"), ["y"])]
    assert names(refusal(DataError, build_corpus, "toy", twice, require_images=False), "'a.jpg'")


def test_records_of_one_file_are_one_image(tmp_path):
    (tmp_path / "a.jpg").touch()
    records = [Record(name, tmp_path / "a.jpg", [name]) for name in ("first", "second")]
    for corpus in (build_corpus("toy", records), build_corpus("toy", records, require_images=False)):
        assert (corpus.image_ids, corpus.captions) == (("first",), ("first", "second"))


def test_splits_by_any_name():
    corpus = build(["a"], ["b"], ["c"], ["d"], splits=["train", "val", "test", ""])
    assert corpus.splits == ("train", "validation", "test", "")
    for name in ("dev", "val", "validation"):
        chosen = corpus.split(name)
        assert (chosen.name, chosen.captions, chosen.splits) == ("toy/validation", ("b",), ("validation",))
    assert corpus.split("train").image_ids == ("0.jpg",)


def test_an_unknown_split_in_the_data_is_refused():
    assert names(refusal(DataError, build, ["a"], splits=["foo"]), "'foo'")


def test_an_empty_split_names_what_there_is():
    corpus = build(["a"], ["b"], ["c"], splits=["train", "train", ""])
    assert names(refusal(DataError, corpus.split, "dev"), "'dev'", 2, 0, 0, 1)


def test_without_splits_the_hash_decides():
    corpus = build(*([f"caption {i}"] for i in range(100)))
    parts = {name: corpus.split(name) for name in ("train", "validation", "test")}
    assert {name: len(part) for name, part in parts.items()} == {"train": 80, "validation": 10, "test": 10}
    assert set().union(*(part.image_ids for part in parts.values())) == set(corpus.image_ids)
    assert corpus.split("test").image_ids == corpus.split("test").image_ids
    assert names(refusal(DataError, build(["only one"]).split, "val"), "'val'")


def test_a_split_can_be_split_no_further():
    corpus = build(["a"], ["b"], splits=["train", "test"]).split("train")
    assert corpus.split("train").image_ids == corpus.image_ids
    refusal(DataError, corpus.split, "test")


@st.composite
def cases(draw):
    """Draw pairs, the numbers of images and texts, and images to select."""
    num_images, num_texts = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    possible = st.tuples(st.integers(0, num_images - 1), st.integers(0, num_texts - 1))
    pairs = draw(st.lists(possible, max_size=20, unique=True))
    return pairs, num_images, num_texts, draw(st.lists(st.integers(0, num_images - 1), unique=True))


@pytest.mark.medium
@given(cases())
def test_select_keeps_exactly_the_pairs_of_the_images(case):
    *drawn, positions = case
    corpus = make_corpus(*drawn)
    chosen = corpus.select(np.array(positions, dtype=np.int64))
    assert chosen.image_ids == tuple(f"i{p}" for p in positions)
    assert chosen.image_paths == tuple(Path(f"i{p}.png") for p in positions)
    assert pairs_of(chosen) == {pair for pair in pairs_of(corpus) if pair[0] in chosen.image_ids}
    assert set(chosen.captions) == {text for _, text in pairs_of(chosen)}
    assert len(set(chosen.captions)) == len(chosen.captions) == chosen.relevance.num_texts
    assert (np.diff(chosen.relevance.images) >= 0).all()


def test_captions_follow_the_images_they_belong_to():
    corpus = build(["a", "b"], ["c"], ["d", "e"]).select(np.array([2, 0]))
    assert corpus.captions == ("d", "e", "a", "b")
    np.testing.assert_array_equal(corpus.relevance.images, [0, 0, 1, 1])


@pytest.mark.medium
def test_coco_size_is_no_burden():
    num_images = 120_000
    names = tuple(f"{i:012d}.jpg" for i in range(num_images))
    images = np.repeat(np.arange(num_images), 5)
    relevance = Relevance(images, np.arange(5 * num_images), num_images, 5 * num_images)
    splits = ("train",) * (num_images - 5000) + ("test",) * 5000
    corpus = Corpus("coco", names, (Path("x"),) * num_images, ("a",) * 5 * num_images, relevance, splits)
    started = time.perf_counter()
    assert len(corpus.split("train").captions) == 5 * (num_images - 5000)
    assert time.perf_counter() - started < 3
