"""Names of splits, the split by hash, and leakage between splits."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.corpus import Record, build_corpus
from openvse.corpus.splits import (
    SPLITS,
    canonical_split,
    completed_splits,
    equal_files,
    hashed_splits,
    is_split,
    stable_hash,
    without_leakage,
)
from openvse.errors import DataError
from openvse.media.listing import Problem
from tests.naming import names, refusal

SHARES = (0.8, 0.1, 0.1)


def test_synonyms():
    validation = dict.fromkeys(("dev", "val", " valid ", "validation"), "validation")
    known = {**dict.fromkeys(("train", "Training", "restval"), "train"), **validation, "TEST": "test"}
    assert {name: canonical_split(name) for name in known} == known
    assert all(map(is_split, known))


def test_unknown_split_names_the_allowed_ones():
    assert not is_split("images")
    assert names(refusal(DataError, canonical_split, "holdout"), "'holdout'")


@pytest.mark.medium
@given(st.integers(0, 300))
def test_counts_are_exact_to_one(count):
    counts = Counter(hashed_splits([f"image{i}" for i in range(count)], SHARES))
    for split, share in zip(SPLITS, SHARES, strict=True):
        assert abs(counts[split] - share * count) <= 1


@pytest.mark.medium
@given(st.permutations([f"{i}.jpg" for i in range(30)]))
def test_order_does_not_matter(ids):
    by_id = dict(zip(ids, hashed_splits(ids, SHARES), strict=True))
    names = sorted(ids)
    assert by_id == dict(zip(names, hashed_splits(names, SHARES), strict=True))


def test_new_items_move_only_those_at_a_cut():
    ids = [f"{i}.jpg" for i in range(1000)]
    before = hashed_splits(ids, SHARES)
    after = hashed_splits([*ids, "new.jpg"], SHARES)
    assert sum(a != b for a, b in zip(before, after, strict=False)) <= 2


def test_other_shares():
    assert set(hashed_splits(["a", "b", "c"], (0.0, 0.0, 1.0))) == {"test"}
    counts = Counter(hashed_splits(list("abcdefghij"), (0.5, 0.3, 0.2)))
    assert counts == {"train": 5, "validation": 3, "test": 2}
    names = [f"{number}.jpg" for number in range(40)]
    for_test = completed_splits(["test"] * 4 + [""] * 36, names, ())
    assert Counter(for_test) == {"test": 4, "train": 32, "validation": 4}
    assert for_test[:4] == ("test",) * 4
    assert Counter(completed_splits(["train", "test"] + [""] * 38, names, ()))[""] == 38  # as published data mean it
    assert completed_splits([""] * 40, names, ()) == hashed_splits(names)


def test_the_hash_never_changes():
    assert stable_hash("a.jpg") == 18322877502207469449
    assert stable_hash("a.jpg") != stable_hash("b.jpg")


def listed(ids, splits):
    return [Record(item, Path(item), ["a dog"], split) for item, split in zip(ids, splits, strict=True)]


def test_what_is_in_several_splits_stays_in_the_last():
    ids = ["a", "b", "a", "c", "b", "d", "b"]
    records = listed(ids, ["train", "validation", "test", "train", "train", "", "validation"])
    problems: list[Problem] = []
    assert without_leakage(problems, records) == [records[number] for number in (1, 2, 3, 5, 6)]
    (problem,) = problems
    assert problem.cases == ("a", "b") and problem.fault


@pytest.mark.parametrize(
    ("ids", "splits"), [(["a", "a", "b"], ["train", "train", "test"]), (["a", "a"], ["", "test"]), ([], [])]
)
def test_sound_lists_are_left_as_they_are(ids, splits):
    problems: list[Problem] = []
    assert without_leakage(problems, listed(ids, splits)) == listed(ids, splits)
    assert problems == []


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
    assert names(problem, "leakage: 1 ", "a.jpg")


def test_an_image_in_a_split_and_in_none_is_refused(tmp_path):
    def build(*splits: str):
        records = [Record("a.jpg", tmp_path / "a.jpg", [split], split) for split in splits]
        return build_corpus("pets", records, require_images=False)

    assert build("train", "restval").captions == ("train", "restval")
    assert names(refusal(DataError, build, "train", ""), "'a.jpg'")


def test_equal_files_stay_together(tmp_path):
    """The split by hash changes only for an item that equals one of another split."""
    names = [f"{number}.jpg" for number in range(40)]
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text(path.name)
    alone = hashed_splits(names)
    assert hashed_splits(names, files=paths) == alone
    one, other, third = (alone.index(split) for split in ("train", "validation", "test"))
    for number in (other, third):
        paths[number].write_text(names[one])
    together = hashed_splits(names, files=paths)
    assert together[one] == together[other] == together[third]
    rest = set(range(40)) - {one, other, third}
    assert [together[n] for n in rest] == [alone[n] for n in rest]
    assert equal_files(paths, together) == []


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
