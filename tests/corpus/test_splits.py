"""Names of splits, and the split by hash."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.corpus.splits import SPLITS, canonical_split, hashed_splits, is_split, stable_hash
from openvse.errors import DataError

SHARES = (0.8, 0.1, 0.1)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("Training", "train"),
        ("restval", "train"),
        ("dev", "validation"),
        ("val", "validation"),
        (" valid ", "validation"),
        ("validation", "validation"),
        ("TEST", "test"),
    ],
)
def test_synonyms(name, split):
    assert canonical_split(name) == split
    assert is_split(name)


def test_unknown_split_names_the_allowed_ones():
    assert not is_split("images")
    with pytest.raises(DataError, match="unknown split 'holdout'; use one of train, validation, test"):
        canonical_split("holdout")


@given(st.integers(0, 300))
def test_counts_are_exact_to_one(count):
    counts = Counter(hashed_splits([f"image{i}" for i in range(count)], SHARES))
    for split, share in zip(SPLITS, SHARES, strict=True):
        assert abs(counts[split] - share * count) <= 1


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
    assert Counter(hashed_splits(list("abcdefghij"), (0.5, 0.3, 0.2))) == {
        "train": 5,
        "validation": 3,
        "test": 2,
    }


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.2), (1.2, -0.1, -0.1)])
def test_shares_that_are_none(shares):
    with pytest.raises(DataError, match="must sum to 1"):
        hashed_splits(["a"], shares)


def test_the_hash_never_changes():
    assert stable_hash("a.jpg") == 18322877502207469449
    assert stable_hash("a.jpg") != stable_hash("b.jpg")
