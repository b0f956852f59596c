"""Items in two splits, by identifier and by content."""

import numpy as np
import pytest

from openvse.corpus import Record, build_corpus
from openvse.corpus.splits import equal_files, one_split_each
from openvse.errors import DataError


def test_what_is_in_several_splits_stays_in_the_last():
    ids = ["a", "b", "a", "c", "b", "d", "b"]
    splits = ["train", "validation", "test", "train", "train", "", "validation"]
    keep, leaked = one_split_each(ids, splits)
    assert keep == [1, 2, 3, 5, 6]
    assert leaked == ["a", "b"]


def test_sound_lists_are_left_as_they_are():
    assert one_split_each(["a", "a", "b"], ["train", "train", "test"]) == ([0, 1, 2], [])
    assert one_split_each(["a", "a"], ["", "test"]) == ([0, 1], [])
    assert one_split_each([], []) == ([], [])


def test_a_corpus_reports_leaked_images(tmp_path):
    records = [
        Record("a.jpg", tmp_path / "a.jpg", ["a dog"], "train"),
        Record("b.jpg", tmp_path / "b.jpg", ["a cat"], "restval"),
        Record("a.jpg", tmp_path / "a.jpg", ["a dog"], "val"),
    ]
    corpus = build_corpus("pets", records, require_images=False)
    assert corpus.image_ids == ("b.jpg", "a.jpg")
    assert corpus.splits == ("train", "validation")
    (problem,) = corpus.problems
    assert problem.startswith("leakage: 1 image(s) are listed in several splits") and "a.jpg" in problem


def test_an_image_twice_in_one_split_is_refused_as_before(tmp_path):
    records = [Record("a.jpg", tmp_path / "a.jpg", ["x"], split) for split in ("train", "restval")]
    with pytest.raises(DataError, match="listed twice"):
        build_corpus("pets", records, require_images=False)


def test_equal_files_in_different_splits(tmp_path):
    contents = {
        "first": b"x" * 9000,
        "same": b"x" * 9000,
        "same_tail": b"y" + b"x" * 8999,
        "same_size": b"z" * 9000,
        "twin": b"x" * 9000,
    }
    paths = [tmp_path / name for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_bytes(content)
    names = list(contents)

    def pairs(*splits: str) -> list[tuple[str, str]]:
        return [(names[one], names[other]) for one, other in equal_files(paths, splits)]

    assert pairs("train", "test", "test", "test", "train") == [("first", "same")]
    assert pairs("test", "train", "", "", "validation") == [("same", "first"), ("same", "twin")]
    assert pairs("train", "train", "test", "test", "train") == []
    assert pairs("train", "", "", "", "") == []


def test_files_that_are_not_there_cannot_leak(tmp_path):
    (tmp_path / "b").write_bytes(b"1")
    assert equal_files([tmp_path / "a", tmp_path / "b"], ["train", "test"]) == []


def test_only_suspects_are_read(tmp_path, monkeypatch):
    """Files of different sizes are told apart without opening one."""
    paths = [tmp_path / str(number) for number in range(200)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(number))
    splits = np.array(["train", "test"])[np.arange(200) % 2].tolist()
    monkeypatch.setattr("pathlib.Path.open", lambda *_: pytest.fail("a file was opened"))
    assert equal_files(paths, splits) == []
