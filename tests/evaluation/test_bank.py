"""Hubs taken out by a query bank, against loops written from the formula."""

import math
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.evaluation.embed import Member, make_bank
from openvse.evaluation.report import Report, evaluate_sets
from openvse.evaluation.rerank import Reranker
from openvse.functional import normalize
from openvse.scoring import hubs
from openvse.scoring.hubs import QueryBank, read_bank, reliability
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, Relevance
from tests.naming import refusal

IMAGES, TEXTS = 24, 48
RELEVANCE = Relevance(np.arange(TEXTS) % IMAGES, np.arange(TEXTS), IMAGES, TEXTS)


def member(seed: int, images: int, texts: int, embeddings: int = 1, scale: float = 1.0) -> Member:
    """Return random embeddings around one direction, so that some items are near to everything."""
    random = torch.Generator().manual_seed(seed)

    def some(count: int) -> EmbeddingSet:
        vectors = normalize(torch.randn(count, embeddings, 5, generator=random) + 0.8) * math.sqrt(scale)
        return EmbeddingSet(vectors.half().float(), torch.ones(count, embeddings, dtype=torch.bool))

    return Member(some(images), some(texts), SetMax())


def bank_of(own: Member) -> QueryBank:
    """Make a bank of images with two texts each."""
    images, texts = len(own.images), len(own.texts)
    ids = tuple(f"{number}.jpg" for number in range(images))
    pairs = Relevance(np.arange(texts) // 2, np.arange(texts), images, texts)
    captions = tuple(f"caption {number}" for number in range(texts))
    return make_bank("model", own, Corpus("bank", ids, tuple(map(Path, ids)), captions, pairs, ("",) * images))


def slow_penalties(scores: np.ndarray, middle: int, beta: float) -> np.ndarray:
    """Return r a(g) for the items of the rows; the columns are the queries of a bank."""

    def soft_mean(row: np.ndarray) -> float:
        return math.log(sum(math.exp(beta * float(each)) for each in row) / len(row)) / beta

    one, two = (np.array([soft_mean(row) for row in part]) for part in (scores[:, :middle], scores[:, middle:]))
    x, y = one - one.mean(), two - two.mean()
    c = math.tanh(math.atanh((x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum())) - 1 / math.sqrt(len(x) - 3))
    return max(0.0, 2 * c / (1 + c)) * np.array([soft_mean(row) for row in scores])


def slow_ranks(scores: np.ndarray, relevant: np.ndarray) -> list[int]:
    return [1 + int(((row >= row[wanted].max()) & ~wanted).sum()) for row, wanted in zip(scores, relevant, strict=True)]


def run(own: Member, bank: QueryBank | None, folds: int = 1) -> Report:
    return evaluate_sets(
        own.images, own.texts, RELEVANCE, SetMax(), bank=bank, folds=folds, resamples=0, keep=3, block_size=16
    )


@pytest.mark.parametrize(("seed", "embeddings"), [(0, 1), (1, 1), (2, 2)])
def test_ranks_are_those_of_scores_less_reliable_attraction(seed: int, embeddings: int) -> None:
    own, other = member(seed, IMAGES, TEXTS, embeddings), member(seed + 50, 20, 40, embeddings)
    report, plain = run(own, bank_of(other)), run(own, None)
    assert report.outcomes is not None
    scores, relevant = SetMax()(own.images, own.texts).numpy(), np.zeros((IMAGES, TEXTS), bool)
    relevant[RELEVANCE.images, RELEVANCE.texts] = True
    within = SetMax()(other.images, other.texts).double().numpy()
    of_texts, of_images = 2 / within.std(axis=0).mean(), 2 / within.std(axis=1).mean()
    images = slow_penalties(SetMax()(own.images, other.texts).numpy(), 20, of_texts)
    texts = slow_penalties(SetMax()(other.images, own.texts).numpy().T, 10, of_images)
    assert images.any() or texts.any()
    assert report.outcomes.i2t.ranks.tolist() == slow_ranks(scores - texts, relevant)
    assert report.outcomes.t2i.ranks.tolist() == slow_ranks(scores.T - images, relevant.T)
    assert plain.metrics != report.metrics


def test_the_scale_of_the_scores_changes_nothing() -> None:
    small, large = (
        run(member(0, IMAGES, TEXTS, scale=scale), bank_of(member(50, 20, 40, scale=scale))).metrics
        for scale in (1.0, 64.0)
    )
    assert small == large


def test_each_fold_is_measured_by_itself() -> None:
    own, bank = member(4, IMAGES, TEXTS), bank_of(member(5, 16, 32))
    report = run(own, bank, folds=2)
    halves = []
    for start in (0, IMAGES // 2):
        images = slice(start, start + IMAGES // 2)
        texts = torch.from_numpy(np.flatnonzero(np.isin(RELEVANCE.images, np.arange(IMAGES)[images])))
        part = own.part(images, texts)
        relevance = Relevance(RELEVANCE.images[texts] - start, np.arange(len(texts)), IMAGES // 2, len(texts))
        halves.append(evaluate_sets(part.images, part.texts, relevance, SetMax(), bank=bank, resamples=0).metrics)
    assert report.metrics["rsum"] == pytest.approx(np.mean([half["rsum"] for half in halves]))


def test_reliability_is_that_of_two_halves_one_standard_error_below() -> None:
    random = np.random.default_rng(0)
    true = random.standard_normal(500)
    halves = true[:, None] + 0.5 * random.standard_normal((500, 2))
    c = np.corrcoef(halves.T)[0, 1]
    lower = np.tanh(np.arctanh(c) - 1 / np.sqrt(497))
    assert reliability(halves) == pytest.approx(2 * lower / (1 + lower))
    assert 0.8 < reliability(halves) < 0.9
    for none in (halves[:3], halves[:20] * [1, -1], np.ones((20, 2)), np.empty((0, 2))):
        assert reliability(none) == 0
    assert reliability(np.repeat(true[:, None], 2, axis=1)) == pytest.approx(1)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_ROWS", 4)
    scores = np.random.default_rng(0).standard_normal((10, 13)).astype(np.float32)
    halves = hubs.measure_attraction(lambda rows: scores[rows], 10, 5, 50.0)
    for place, part in enumerate((scores[:, :5], scores[:, 5:])):
        expected = np.log(np.exp(50 * part.astype(np.float64)).mean(axis=1)) / 50
        assert halves[:, place] == pytest.approx(expected, abs=1e-6)
    whole, r = hubs.penalties(halves, 5 / 13, 50.0)
    expected = np.log(np.exp(50 * scores.astype(np.float64)).mean(axis=1)) / 50
    assert whole == pytest.approx(r * expected, abs=1e-6)


def test_a_bank_is_written_and_read_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    bank = bank_of(member(7, 20, 40, 2))
    bank.write(tmp_path)
    again = read_bank(tmp_path)
    assert again is not None and again.model == "model"
    assert np.array_equal(again.texts.vectors, bank.texts.vectors) and again.texts.vectors.dtype == np.float16
    assert (again.images.middle, again.texts.middle) == (10, 20)
    assert (again.images.beta, again.texts.beta) == (bank.images.beta, bank.texts.beta)
    (tmp_path / hubs.BANK).write_bytes(b"PK")
    assert read_bank(tmp_path) is None


@pytest.mark.parametrize("name", ["model", "texts_vectors", "images_mask", "texts_middle"])
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_bank_of_which_one_array_is_damaged_is_left_out(tmp_path: Path, name: str, kind: int) -> None:
    bank_of(member(7, 20, 40, 2)).write(tmp_path)
    with zipfile.ZipFile(tmp_path / hubs.BANK) as whole:
        parts = {each: whole.read(each) for each in whole.namelist()}
    parts[f"{name}.npy"] = b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((,\n" + bytes(5000)  # no Python
    with zipfile.ZipFile(tmp_path / hubs.BANK, "w", kind) as changed:
        for each, content in parts.items():
            changed.writestr(each, content)
        place = changed.getinfo(f"{name}.npy").header_offset + 30 + len(f"{name}.npy")
    assert read_bank(tmp_path) is None
    if kind == zipfile.ZIP_DEFLATED:
        content = bytearray((tmp_path / hubs.BANK).read_bytes())
        content[place : place + 3] = b"\xff\xff\xff"  # no stream of deflate
        (tmp_path / hubs.BANK).write_bytes(content)
        assert read_bank(tmp_path) is None


def test_a_bank_of_one_image_is_refused() -> None:
    refusal(DataError, bank_of, member(7, 1, 2))


def test_a_bank_is_refused_beside_reranking_all_places_and_other_models() -> None:
    own, bank = member(8, IMAGES, TEXTS), bank_of(member(9, 4, 8))
    for more in ({"reranker": Reranker(own, 3)}, {"every": True}, {"others": [replace(own)]}):
        refusal(DataError, evaluate_sets, own.images, own.texts, RELEVANCE, SetMax(), bank=bank, resamples=0, **more)
