"""Arrays of embeddings give the report that a model with these embeddings gets."""

import numpy as np
import pytest
import torch

import openvse
from openvse.errors import DataError
from openvse.evaluation.arrays import evaluate_arrays
from openvse.evaluation.report import evaluate_sets
from openvse.functional import normalize
from openvse.similarities import CSD, Fused, Order, SetMax
from openvse.types import EmbeddingSet, Relevance
from tests.naming import names, refusal


def vectors(items: int, seed: int, k: int | None = None, noise: float = 1.0) -> np.ndarray:
    """Return embeddings that resemble those of the same position, of any length."""
    shared = np.random.default_rng(9).normal(size=(40, 1, 6))[np.arange(items) % 40]
    drawn = shared + noise * np.random.default_rng(seed).normal(size=(items, k or 1, 6))
    return (5 * drawn if k else 5 * drawn[:, 0]).astype(np.float32)


def as_set(array: np.ndarray) -> EmbeddingSet:
    tensor = torch.from_numpy(array)
    tensor = normalize(tensor if tensor.dim() == 3 else tensor.unsqueeze(1))
    return EmbeddingSet(tensor, torch.ones(tensor.shape[:2], dtype=torch.bool))


@pytest.mark.parametrize("k", [None, 3])
def test_it_is_the_report_of_the_evaluator(k: int | None) -> None:
    images, texts = vectors(40, 0, k), np.repeat(vectors(40, 1), 2, axis=0)
    texts = texts + np.random.default_rng(2).normal(size=texts.shape).astype(np.float32)
    pairs = Relevance(np.arange(80) // 2, np.arange(80), 40, 80)
    expected = evaluate_sets(as_set(images), as_set(texts), pairs, SetMax(), name="mine")
    report = openvse.evaluate(images, texts, name="mine")
    assert 0 < report.metrics["i2t_r1"] < 100
    assert report == expected
    assert report.intervals["rsum"][0] < report.metrics["rsum"] < report.intervals["rsum"][1]
    assert openvse.evaluate(torch.from_numpy(images), torch.from_numpy(texts), name="mine") == expected
    assert openvse.evaluate(as_set(images), as_set(texts), name="mine").metrics == expected.metrics


@pytest.mark.medium
def test_relevance_in_every_form_is_the_same() -> None:
    images, texts = vectors(5, 0), vectors(7, 1)
    owners = np.array([4, 0, 1, 2, 3, 0, 2])
    pairs = np.stack([owners, np.arange(7)], axis=1)
    matrix = owners == np.arange(5)[:, None]
    forms = [owners, owners.tolist(), torch.from_numpy(owners), pairs, [tuple(p) for p in pairs], matrix]
    reports = [openvse.evaluate(images, texts, form) for form in forms]
    reports.append(openvse.evaluate(images, texts, Relevance(owners, np.arange(7), 5, 7)))
    assert all(report.metrics == reports[0].metrics for report in reports)
    assert openvse.evaluate(images, texts[:5]).metrics != reports[0].metrics


def test_the_first_texts_belong_to_the_first_image() -> None:
    images = np.eye(3)
    assert openvse.evaluate(images, np.repeat(images, 5, axis=0)).metrics["rsum"] == 600
    assert openvse.evaluate(images, np.tile(images, (5, 1))).metrics["i2t_r1"] < 100


def test_precisions_may_differ_and_gradients_are_dropped() -> None:
    images, texts = vectors(6, 0), vectors(6, 1)
    expected = openvse.evaluate(images, texts).metrics
    assert openvse.evaluate(images.astype(np.float64), texts).metrics == expected
    assert openvse.evaluate(torch.from_numpy(images).requires_grad_(), texts).metrics == expected
    assert openvse.evaluate(images.astype(np.float16), texts).protocol.num_images == 6


def test_options_reach_the_evaluator() -> None:
    images, texts = vectors(10, 0), vectors(10, 1)
    report = openvse.evaluate(images, texts, folds=2, resamples=0)
    assert (report.protocol.folds, report.intervals) == (2, {})
    assert openvse.evaluate(images, texts, similarity=Order()).metrics != openvse.evaluate(images, texts).metrics
    assert names(refusal(DataError, lambda: openvse.evaluate(images, texts, similarity=Fused(embed_dim=8))), "Fused")


def test_distributions_are_not_scaled() -> None:
    means, sums = vectors(6, 0), np.array([[9.0], [0.1], [0.1], [0.1], [0.1], [0.1]], np.float32)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    images = np.concatenate([means, -sums / 2, np.ones_like(sums)], axis=1)
    texts = np.concatenate([means, np.ones_like(sums), -sums / 2], axis=1)
    report = openvse.evaluate(images, texts, similarity=CSD(), resamples=0)
    distances = ((means[:, None] - means[None]) ** 2).sum(axis=2) + sums + sums.T
    ranks = (distances <= distances.diagonal()).sum(axis=0)  # of each text's own image
    assert report.metrics["t2i_r1"] == pytest.approx(100 * np.mean(ranks == 1)) and ranks[0] > 1
    assert openvse.evaluate(means, means, resamples=0).metrics["t2i_r1"] == 100


def broken() -> np.ndarray:
    array = vectors(4, 0)
    array[2, 1] = np.nan
    return array


@pytest.mark.parametrize(
    ("images", "texts", "relevance", "message"),
    [
        (vectors(4, 0), vectors(6, 1), None, "6.*4.*6"),
        (vectors(4, 0), vectors(4, 1)[:, :5], None, "6.*5"),
        (vectors(4, 0)[0], vectors(4, 1), None, "torch.float32.*6"),
        (np.ones((4, 6), int), vectors(4, 1), None, "torch.int64.*4.*6"),
        (broken(), vectors(4, 1), None, "2.*NaN.*1"),
        (vectors(4, 0), vectors(4, 1), [0, 1, 2], r"relevance.*int64 \[3\].*\[4\]"),
        (vectors(4, 0), vectors(4, 1), [0, 1, 2, 4], "4.*0.*3"),
        (vectors(4, 0), vectors(4, 1), [(0, 9)], "9.*0.*3"),
        (vectors(4, 0), vectors(4, 1), np.zeros((4, 4), bool), ""),
        (vectors(4, 0), vectors(4, 1), [0.0, 1.0, 2.0, 3.0], "relevance.*float64"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(images, texts, relevance, message: str) -> None:
    with pytest.raises(DataError, match=message or None) as caught:
        openvse.evaluate(images, texts, relevance)
    assert "\n" not in str(caught.value)


def noisy(images: np.ndarray, copies: int) -> np.ndarray:
    texts = np.repeat(images, copies, axis=0)
    return texts + 0.3 * np.random.default_rng(1).normal(size=texts.shape)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("copies", [2, 5])
def test_images_that_are_repeated_for_each_caption_count_once(dtype, copies):
    """VSE++ and SCAN hold a row for each caption, which batches of an encoder may have rounded differently."""
    images = np.random.default_rng(0).normal(size=(30, 16))
    texts = noisy(images, copies).astype(dtype)
    repeated = np.repeat(images, copies, axis=0)
    repeated *= 1 + 1e-7 * np.random.default_rng(2).normal(size=repeated.shape)
    once = evaluate_arrays(images.astype(dtype), texts, resamples=0)
    owners = np.arange(len(repeated))
    for relevance in (None, owners, np.stack([owners, owners], axis=1), np.eye(len(owners), dtype=bool)):
        report = evaluate_arrays(repeated.astype(dtype), texts, relevance, resamples=0)
        assert report.metrics == once.metrics and report.protocol.num_images == 30
        assert names(report.problems[0], copies) and once.problems == ()


def test_sets_of_embeddings_may_be_repeated_too():
    images = np.random.default_rng(0).normal(size=(12, 3, 8))
    report = evaluate_arrays(np.repeat(images, 4, axis=0), noisy(images, 4), resamples=0)
    assert report.protocol.num_images == 12


def test_images_that_are_equal_in_no_order_are_told():
    images = np.random.default_rng(0).normal(size=(20, 8))
    counts = np.arange(20) % 3 + 1
    report = evaluate_arrays(np.repeat(images, counts, axis=0), np.repeat(images, counts, axis=0), resamples=0)
    assert report.protocol.num_images == counts.sum() == 39
    assert names(report.problems[0], 19, 39)
    collapsed = evaluate_arrays(np.ones((20, 8)), images, resamples=0)
    assert collapsed.metrics["t2i_r1"] == 0 and names(collapsed.problems[0], 19, 20)


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_the_length_of_vectors_has_no_effect(size: float) -> None:
    images, texts = vectors(40, 0), vectors(40, 1)
    assert evaluate_arrays(images * np.float32(size), texts).metrics == evaluate_arrays(images, texts).metrics
    assert evaluate_arrays(np.eye(40, dtype=np.float32) * size, np.eye(40)).metrics["rsum"] == 600


def test_arrays_of_another_byte_order_are_read() -> None:
    images, texts = vectors(40, 0), vectors(40, 1)
    owners = np.arange(40)[::-1].astype(">i8")
    expected = evaluate_arrays(images, texts, owners.astype(np.int64))
    assert evaluate_arrays(images.astype(">f4"), texts.astype(">f8"), owners).metrics == expected.metrics
    for odd in (images.astype(object), images.astype("U8"), images.astype(complex)):
        refusal(DataError, evaluate_arrays, odd, texts)


def test_two_columns_of_0_and_1_are_no_clear_relevance() -> None:
    images = np.eye(2)
    refusal(DataError, lambda: evaluate_arrays(images, images, np.eye(2, dtype=int)))
    assert evaluate_arrays(images, images, np.eye(2, dtype=bool)).metrics["i2t_r1"] == 100
    assert evaluate_arrays(images, images, np.array([[0, 0], [1, 1], [0, 0]])).metrics["i2t_r1"] == 100
