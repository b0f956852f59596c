"""Data on which a careless evaluation flatters a model: each trap has the answer that it must get."""

import numpy as np
import pytest

import openvse
from openvse.errors import DataError
from openvse.evaluation.report import Report
from openvse.types import Relevance
from tests.naming import names, refusal


def evaluate(images: np.ndarray, texts: np.ndarray, relevance: object = None) -> Report:
    return openvse.evaluate(images, texts, relevance, every=True, resamples=0)  # type: ignore[arg-type]


def test_constant_embeddings_are_not_better_than_chance() -> None:
    """Ties count against the model, so equal scores for all place every right answer last."""
    report = evaluate(np.ones((40, 4)), np.ones((200, 4)))
    for name, value in report.metrics.items():
        if name.endswith(("_medr", "_meanr", "_nmr")):
            continue
        assert value <= report.chance[name], name
    assert report.metrics["t2i_medr"] == 40
    assert (report.remarks.tied_i2t, report.remarks.tied_t2i) == (40, 200)


@pytest.mark.medium
def test_random_embeddings_are_at_chance() -> None:
    generator = np.random.default_rng(0)
    drawn = [evaluate(generator.normal(size=(50, 8)), generator.normal(size=(250, 8))) for _ in range(30)]
    for name in ("rsum", "i2t_r10", "t2i_r10", "t2i_map_at_r", "i2t_mrr", "i2t_ndcg10", "t2i_meanr"):
        mean, chance = np.mean([report.metrics[name] for report in drawn]), drawn[0].chance[name]
        assert mean == pytest.approx(chance, rel=0.15), name


def test_a_duplicated_image_cannot_be_told_from_its_copy() -> None:
    """Both copies answer the sentences of both with the same score, so neither is found first."""
    images = np.eye(6)
    images[1] = images[0]
    report = evaluate(images, images)
    assert report.metrics["t2i_r1"] == report.metrics["i2t_r1"] == pytest.approx(100 * 4 / 6)
    assert (report.remarks.tied_i2t, report.remarks.tied_t2i) == (2, 2)
    merged = Relevance(np.array([0, 1, 0, 1, 2, 3, 4, 5]), np.array([0, 0, 1, 1, 2, 3, 4, 5]), 6, 6)
    assert evaluate(images, images, merged).metrics["t2i_r1"] == 100


def test_nan_is_refused_by_name() -> None:
    images = np.eye(4)
    images[2, 1] = np.nan
    assert names(refusal(DataError, lambda: evaluate(images, np.eye(4))), "2", "NaN")


def test_a_gallery_smaller_than_k_is_found_whole() -> None:
    report = evaluate(np.eye(3), -np.eye(3))
    assert report.metrics["i2t_r1"] == 0
    assert report.metrics["i2t_r5"] == report.metrics["t2i_r10"] == report.chance["i2t_r5"] == 100
    assert report.metrics["i2t_ndcg10"] == pytest.approx(50)  # place 3: 1 / log2(4)
    assert evaluate(np.eye(1), np.eye(1)).metrics["rsum"] == 600


def test_queries_without_a_relevant_item_are_candidates_only() -> None:
    pairs = np.array([[0, 0], [1, 1]])
    report = evaluate(np.eye(4), np.eye(4), pairs)
    assert report.metrics["rsum"] == 600
    assert (report.remarks.excluded_i2t, report.remarks.excluded_t2i) == (2, 2)
    assert names(report.to_markdown(), "2 images", "2 texts")
    assert report.metrics["i2t_nmr"] == 1 / 4


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_images_and_texts_changes_nothing(seed: int) -> None:
    generator = np.random.default_rng(seed)
    images, texts = generator.normal(size=(30, 4)), generator.normal(size=(90, 4))
    owners = generator.integers(0, 30, size=90)
    rows, columns = generator.permutation(30), generator.permutation(90)
    place = np.argsort(rows)
    one = evaluate(images, texts, owners)
    other = evaluate(images[rows], texts[columns], place[owners[columns]])
    assert one.metrics == pytest.approx(other.metrics)
    assert one.chance == pytest.approx(other.chance)
    assert one.remarks == other.remarks
