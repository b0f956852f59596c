"""The sentences that the published protocols count, beside the released code that defines them."""

from pathlib import Path

import numpy as np
import pytest

from openvse.corpus import Corpus, Record, build_corpus
from openvse.evaluation.report import protocols_of
from openvse_papers.protocols import PROTOCOLS

SAID = (("a", "a dog", "A dog", "a cat", "a dog", "two", "three"), ("b", "a cat", "four"), ("c", "a dog"))


@pytest.fixture
def corpus() -> Corpus:
    records = (Record(name, Path(name), said, "test") for name, *said in SAID)
    return build_corpus("mine", records, require_images=False)


def pairs_of(corpus: Corpus) -> list[tuple[str, str]]:
    pairs = corpus.relevance
    return [
        (corpus.image_ids[image], corpus.captions[text])
        for image, text in zip(pairs.images.tolist(), pairs.texts.tolist(), strict=True)
    ]


def test_five_sentences_of_an_image_are_the_first(corpus: Corpus) -> None:
    """``sentids[:5]`` in the released code of VSE++, whose lists PVSE, SCAN and VSE-infinity read."""
    found = PROTOCOLS["coco_5k"].pooled(corpus)
    assert pairs_of(found) == [(name, each) for name, *said in SAID for each in said[:5]]
    assert PROTOCOLS["coco_1k"].pooled(found) is found
    assert (found.relevance.num_texts, len(found.captions), found.image_ids) == (8, 8, corpus.image_ids)


def test_one_sentence_of_a_clip_is_the_last(corpus: Corpus) -> None:
    """PVSE makes a dictionary of the lines of a table, so the last line of a clip counts."""
    assert pairs_of(PROTOCOLS["tgif"].pooled(corpus)) == [(name, said[-1]) for name, *said in SAID]


def test_equal_sentences_are_one_text_of_all_their_clips(corpus: Corpus) -> None:
    """HGR's reader makes a set of the sentences, and counts a clip as right if its list has the sentence."""
    found = PROTOCOLS["msr_vtt"].pooled(corpus)
    distinct = {each for _, *said in SAID for each in said}
    assert len(found.captions) == len(set(found.captions)) == len(distinct)
    assert set(pairs_of(found)) == {(name, each) for name, *said in SAID for each in said}
    assert len(pairs_of(found)) == len(set(pairs_of(found)))
    assert PROTOCOLS["msr_vtt_all"].pooled(corpus) is corpus


def test_a_part_of_a_data_set_fits_the_protocols_that_would_change_nothing() -> None:
    records = [Record(str(n), Path(str(n)), [f"{n} {k}" for k in range(6)], "test") for n in range(5000)]
    corpus = build_corpus("coco", records, require_images=False)
    assert {"coco_5k_all", "coco_1k_all"} <= {*protocols_of(corpus)}
    assert not {"coco_5k", "coco_1k", "tgif"} & {*protocols_of(corpus)}
    five = PROTOCOLS["coco_5k"].pooled(corpus)
    assert {"coco_5k", "coco_1k"} <= {*protocols_of(five)}
    assert np.array_equal(np.bincount(five.relevance.images), np.full(5000, 5))
    assert protocols_of(corpus.select(np.arange(10))) == ()


def test_other_readings_stand_beside_the_published_one() -> None:
    """A protocol that leaves sentences out or merges them has a neighbour with all sentences."""
    for name, each in PROTOCOLS.items():
        if each.pool != "all":
            other = PROTOCOLS[f"{name}_all"]
            assert each.code and (other.pool, other.data, other.folds) == ("all", each.data, each.folds)
