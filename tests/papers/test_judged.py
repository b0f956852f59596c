"""Crisscrossed Captions and ECCV Caption against loops over single queries, SciPy, and the authors' package."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coco_judgements import write_coco, write_cxc, write_eccv
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.errors import DataError, OpenVSEError
from openvse.evaluation.report import protocol_named
from openvse.similarities import SetMax
from openvse.training.kind import Request, under_protocol
from openvse.types import EmbeddingSet, Relevance
from openvse_papers.judged import (
    NumberedItems,
    bootstrap_correlation,
    judge_cxc,
    judge_eccv_caption,
    number_items,
    read_cxc,
    read_eccv_caption,
    spearman,
)
from openvse_papers.protocols import PROTOCOLS
from tests.naming import names, refusal


def embedded(count: int, seed: int, dim: int = 6) -> EmbeddingSet:
    values = torch.randn(count, 1, dim, generator=torch.Generator().manual_seed(seed))
    return EmbeddingSet(F.normalize(values, dim=2), torch.ones(count, 1, dtype=torch.bool))


@pytest.fixture
def items(tmp_path: Path) -> NumberedItems:
    root = write_coco(tmp_path / "coco")
    corpus = open_corpus(f"coco:{root}", require_images=False).split("test")
    return number_items(root, corpus, embedded(4, 0), embedded(9, 1))


def slow_recalls(scores: np.ndarray, positives: dict[int, set[int]], *, itself: bool = False) -> list[float]:
    ranks = []
    for query, good in positives.items():
        row = [(score, item) for item, score in enumerate(scores[query]) if not (itself and item == query)]
        best = max(score for score, item in row if item in good)
        ranks.append(1 + sum(score >= best for score, item in row if item not in good))
    return [100 * float(np.mean(np.array(ranks) <= k)) for k in (1, 5, 10)]


@pytest.mark.medium
def test_crisscrossed_captions_equal_a_loop(items: NumberedItems, tmp_path: Path) -> None:
    report = judge_cxc(items, SetMax(), read_cxc(write_cxc(tmp_path / "cxc"), "test"), model="abc")
    images, texts = items.images.vectors[:, 0].numpy(), items.texts.vectors[:8, 0].numpy()
    fits = {0: {0, 1}, 1: {2}, 2: {1, 4, 5}, 3: {6, 7}}
    fitted = {0: {0}, 1: {0, 2}, 2: {1}, 4: {2}, 5: {2}, 6: {3}, 7: {3}}
    same = {0: {1}, 1: {0, 4}, 2: {3}, 3: {2}, 4: {1, 5}, 5: {4, 7}, 6: {7}, 7: {6, 5}}
    alike = {0: {3}, 2: {3}, 3: {0, 2}}
    expected = {
        "image to text": (slow_recalls(images @ texts.T, fits), 4, 8),
        "text to image": (slow_recalls(texts @ images.T, fitted), 7, 4),
        "text to text": (slow_recalls(texts @ texts.T, same, itself=True), 8, 8),
        "image to image": (slow_recalls(images @ images.T, alike, itself=True), 3, 4),
    }
    for side, (recalls, queries, gallery) in expected.items():
        found = report.retrieval[side]
        assert [*found.metrics.values()] == recalls, side
        assert (found.queries, found.gallery) == (queries, gallery), side
        assert found.intervals.keys() == found.metrics.keys(), side
        for name, (low, high) in found.intervals.items():
            assert 0 <= low <= found.metrics[name] <= high <= 100, (side, name)
    assert {name: one.pairs for name, one in report.correlations.items()} == {
        "image-text": 10,
        "text-text": 5,
        "image-image": 4,
    }
    assert "| image to text |" in report.to_markdown() and " to 100.0 |" in report.to_markdown()
    assert json.loads(report.to_json())["model"] == "abc"
    strict = judge_cxc(items, SetMax(), read_cxc(tmp_path / "cxc", "test"), strict=True)
    del same[2], same[3], alike[0]
    alike[3].remove(0)
    for side, scores, pairs in (("text to text", texts @ texts.T, same), ("image to image", images @ images.T, alike)):
        assert [*strict.retrieval[side].metrics.values()] == slow_recalls(scores, pairs, itself=True)
        assert strict.retrieval[side].queries == len(pairs)


def test_spearman_equals_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    ratings, scores = generator.integers(0, 6, 80).astype(float), generator.normal(size=80).round(1)
    assert spearman(ratings, scores) == pytest.approx(stats.spearmanr(ratings, scores).statistic)
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0


def test_the_correlation_draws_one_pair_of_half_the_queries() -> None:
    queries = np.repeat(np.arange(40), 3)
    ratings = np.tile([0.0, 2.5, 5.0], 40) + np.random.default_rng(0).uniform(0, 0.1, 120)
    perfect = bootstrap_correlation(queries, ratings, ratings * 2 + 1)
    assert (perfect.mean, perfect.spread) == (pytest.approx(100), pytest.approx(0, abs=1e-9))
    assert (perfect.pairs, perfect.queries) == (120, 40)
    noisy = bootstrap_correlation(queries, ratings, np.random.default_rng(1).normal(size=120))
    assert abs(noisy.mean) < 15 < noisy.spread + 10
    with pytest.raises(DataError, match="3.*4"):
        bootstrap_correlation(np.arange(3), np.arange(3.0), np.arange(3.0))


def test_eccv_caption_on_its_tiny_files(items: NumberedItems, tmp_path: Path) -> None:
    report = judge_eccv_caption(items, SetMax(), read_eccv_caption(write_eccv(tmp_path)))
    assert [(one.queries, one.gallery) for one in report.retrieval.values()] == [(2, 8), (2, 4)]
    assert report.problems == ()
    for one in report.retrieval.values():
        assert one.intervals.keys() == one.metrics.keys() == {"map_at_r", "rprecision", "r1"}
        assert all(low <= one.metrics[name] <= high for name, (low, high) in one.intervals.items())
    (tmp_path / "original_caption_to_image.json").unlink()
    whole = judge_eccv_caption(items, SetMax(), read_eccv_caption(tmp_path))
    assert whole.retrieval["image to text"].gallery == 9
    assert any("original_caption_to_image.json" in note for note in whole.notes)
    (tmp_path / "eccv_image_to_caption.json").write_text('{"1": [2]}')
    refusal(DataError, lambda: judge_eccv_caption(items, SetMax(), read_eccv_caption(tmp_path)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:failed to import")
def test_eccv_caption_equals_the_package_of_its_authors() -> None:
    package = pytest.importorskip("eccv_caption", reason="the extra 'dev' is not installed")
    folder = Path(package.__file__).parent / "data"
    original = json.loads((folder / "original_image_to_caption.json").read_text())
    images = np.array([int(number) for number in original])
    captions = np.array([int(each) for several in original.values() for each in several])
    owners = np.repeat(np.arange(len(images)), 5)
    vectors = torch.randn(len(images), 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(len(captions), 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sets = [
        EmbeddingSet(F.normalize(each, dim=2), torch.ones(len(each), 1, dtype=torch.bool))
        for each in (vectors, vectors[torch.from_numpy(owners)] + noise)
    ]
    names, texts = tuple(map(str, images)), tuple(map(str, captions))
    pairs = Relevance(owners, np.arange(len(captions)), len(images), len(captions))
    corpus = Corpus("coco/test", names, tuple(map(Path, names)), texts, pairs, ("test",) * len(images))
    report = judge_eccv_caption(
        NumberedItems(corpus, *sets, images, captions, owners), SetMax(), read_eccv_caption(folder)
    )
    scores = sets[0].vectors[:, 0] @ sets[1].vectors[:, 0].T
    theirs = package.Metrics().eccv_metrics(
        {
            "i2t": dict(zip(images.tolist(), captions[scores.topk(64).indices.numpy()].tolist(), strict=True)),
            "t2i": dict(zip(captions.tolist(), images[scores.T.topk(64).indices.numpy()].tolist(), strict=True)),
        },
        "all",
    )
    for side, key in (("image to text", "i2t"), ("text to image", "t2i")):
        found = report.retrieval[side]
        for name in ("map_at_r", "rprecision", "r1"):
            assert found.metrics[name] == pytest.approx(100 * theirs[f"eccv_{name}"][key]), (side, name)
    assert report.retrieval["image to text"].queries == 1261


def test_protocols_say_what_is_not_theirs() -> None:
    request, protocol = under_protocol(Request("coco:x", protocol="coco_1k"), "retrieval")
    assert protocol is not None
    assert (request.folds, request.split, protocol.mismatch(5000, 25_000)) == (5, "test", "")
    assert names(protocol.mismatch(4998, 24_990), "coco_1k", "5,000", "25,000", "4,998", "24,990")
    assert under_protocol(Request("x", protocol="vqa2"), "vqa")[0].split == "validation"
    assert under_protocol(Request("x", protocol="eccv_caption"), "retrieval")[0].every
    assert names(refusal(DataError, protocol_named, "coco_k1"), "'coco_k1'", "coco_1k")
    for request, problem in (
        (Request("x", protocol="vqa2"), "vqa2.*vqa.*retrieval"),
        (Request("x", folds=3, protocol="coco_1k"), "coco_1k.*5.*--folds"),
        (Request("x", annotations=Path("x")), "--annotations.*--protocol"),
    ):
        with pytest.raises(OpenVSEError, match=problem):
            under_protocol(request, "retrieval")
    assert all(name == protocol.name for name, protocol in PROTOCOLS.items())
