from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from openvse.corpus import Corpus, Record, build_corpus
from openvse.corpus.trained_on import SAMPLE_SIZE, Seen, seen_in_training, training_sample


def corpus(first: int, last: int, word: str = "dog") -> Corpus:
    records = (Record(f"{n}.jpg", Path(f"{n}.jpg"), [f"a {word} {n}", "it runs"]) for n in range(first, last))
    return build_corpus("toy", records, require_images=False)


def test_small_training_sets_are_remembered_whole() -> None:
    provenance = {"data": {"trained_on": training_sample(corpus(0, 30))}}
    assert seen_in_training(provenance, corpus(20, 50)) == Seen(30, 10)
    assert seen_in_training(provenance, corpus(30, 50)) == Seen(20, 0)
    assert seen_in_training(provenance, corpus(0, 30, word="cat")) == Seen(30, 0)  # the same names, other content
    assert seen_in_training(provenance, corpus(0, 9, word="DOG")).seen == 9


def test_names_that_are_not_utf_8_are_remembered() -> None:
    odd = build_corpus("toy", [Record("e\udcff.png", Path("e.png"), ["a dog"])], require_images=False)
    assert seen_in_training({"data": {"trained_on": training_sample(odd)}}, odd) == Seen(1, 1)


@pytest.mark.medium
def test_a_sample_of_a_large_training_set_tells_the_share() -> None:
    sample = training_sample(corpus(0, 8 * SAMPLE_SIZE))
    assert (sample["images"], len(base64.b64decode(sample["sample"]))) == (8 * SAMPLE_SIZE, 6 * SAMPLE_SIZE)
    provenance = {"data": {"trained_on": sample}}
    leaked = seen_in_training(provenance, corpus(100, 1100))
    assert leaked.checked == leaked.seen == pytest.approx(125, rel=0.3)
    assert seen_in_training(provenance, corpus(10_000, 11_000)).seen == 0


@pytest.mark.parametrize(
    "provenance",
    [
        {},
        {"data": None},
        {"data": {"trained_on": {"images": 3}}},
        {"data": {"trained_on": {"images": 3, "sample": "no base64"}}},
        {"data": {"trained_on": {"images": "3", "sample": "AAAAAAAA"}}},
        {"data": {"trained_on": {"images": 3, "sample": "AAAA"}}},
    ],
)
def test_provenance_may_hold_anything(provenance: dict[str, Any]) -> None:
    found = seen_in_training(provenance, corpus(0, 5))
    assert found == Seen(0, 0)
    assert found.describe("x") == ""
