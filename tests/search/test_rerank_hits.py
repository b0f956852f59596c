"""Hits ranked again by a model that scores pairs of images and sentences."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from openvse.errors import DataError, ModelError
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import FeatureStore
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.hit_reranker import HitReranker
from openvse.scoring.calibration import Calibration, CalibrationData
from openvse.search import Answer, Hit, Page, Query
from openvse.search.hits import Hits
from openvse.tasks.recipes import parse_recipe
from tests.naming import names, refusal

QUERIES = ["red", "green and blue"]


@pytest.fixture(scope="module")
def fused() -> TwoTower:
    """An untrained model whose scores depend on the pair."""
    tree = {
        "name": "pairs",
        "embed_dim": 16,
        "image": {
            "encoder": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64, "projection": "linear"},
            "aggregator": "tokens",
        },
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "tokens"},
        "similarity": {"name": "fused", "fusion": {"name": "score_attention", "num_heads": 2}},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "training": {"phases": [{"epochs": 1}]},
    }
    model = build_model(parse_recipe(tree), captions=["red green and blue"]).eval()
    # The random backbone hardly answers at all: bring what it says of noise to unit scale, so that images differ.
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    with torch.no_grad():
        spread = model.encode_image([noise]).vectors.std()
        for weight in model.image.encoder.projection.parameters():
            weight.div_(spread)
    return model


@pytest.fixture
def hits(photos: Path) -> list[list[Hit]]:
    """What an index found for two queries: the same four images, in opposite orders."""
    names = ["red.png", "green.png", "blue.png", "deeper/white.png"]
    return [
        [Hit(rank, 1 / rank, name, photos / name) for rank, name in enumerate(order, start=1)]
        for order in (names, names[::-1])
    ]


def ranked(rerank: HitReranker, results: Sequence[Sequence[Hit]], **page: object) -> list[list[Hit]]:
    """Rank what an index found for the queries again, and return the hits of a page."""
    queries = [Query(text) for text in QUERIES[: len(results)]]
    answers = rerank.rerank(queries, [Answer(Hits(hits), 4) for hits in results], [Page(**page)] * len(results))
    return [answer.hits for answer in answers]


def direct(model: TwoTower, query: str, found: list[Hit]) -> dict[str, float]:
    scores = model.score(model.encode_image([hit.path for hit in found]), model.encode_text([query]))
    return dict(zip([hit.id for hit in found], scores[:, 0].tolist(), strict=True))


@pytest.mark.medium
def test_hits_are_ordered_by_the_score_of_the_pair(fused: TwoTower, hits: list[list[Hit]]) -> None:
    again = ranked(HitReranker(fused, top=4), hits)
    for query, before, after in zip(QUERIES, hits, again, strict=True):
        scores = direct(fused, query, before)
        assert [hit.id for hit in after] == sorted(scores, key=lambda name: -scores[name])
        assert [hit.rank for hit in after] == [1, 2, 3, 4]
        assert [hit.score for hit in after] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-5)


@pytest.mark.medium
def test_only_the_first_are_ranked_again(fused: TwoTower, hits: list[list[Hit]]) -> None:
    for before, after in zip(hits, ranked(HitReranker(fused, top=2), hits), strict=True):
        assert {hit.id for hit in after[:2]} == {hit.id for hit in before[:2]}
        assert [(hit.id, hit.score) for hit in after[2:]] == [(hit.id, hit.score) for hit in before[2:]]


def test_the_weight_mixes_both_scores(fused: TwoTower, hits: list[list[Hit]]) -> None:
    (after, _) = ranked(HitReranker(fused, top=4, weight=0.25), hits)
    scores = direct(fused, QUERIES[0], hits[0])
    mixed = {hit.id: 0.25 * scores[hit.id] + 0.75 * hit.score for hit in hits[0]}
    assert {hit.id: hit.score for hit in after} == pytest.approx(mixed, abs=1e-5)


def test_an_image_that_is_gone_stays_behind(
    fused: TwoTower, hits: list[list[Hit]], caplog: pytest.LogCaptureFixture
) -> None:
    hits[0][0].path.unlink()
    with caplog.at_level(logging.WARNING):
        after, _ = ranked(HitReranker(fused, top=3), hits)
    assert [hit.id for hit in after[2:]] == ["red.png", "deeper/white.png"]
    assert "re-ranked" in caplog.text and "red.png" in caplog.text


@pytest.mark.medium
def test_stored_features_stand_in_for_images(
    fused: TwoTower, hits: list[list[Hit]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = fused.image.encoder
    with FeatureStoreWriter(
        tmp_path / "store", fingerprint=str(encoder.fingerprint), dim=encoder.feature_dim, dtype="float32"
    ) as writer:
        for hit in hits[0][:3]:
            with torch.no_grad():
                backbone = encoder.backbone
                writer.add(hit.id, backbone(backbone.collate([backbone.read(hit.path)])).local[0])
    store = FeatureStore(tmp_path / "store", encoder.fingerprint)
    decoded = ranked(HitReranker(fused, top=4), [hits[0][:3], hits[1][1:]])
    stored = ranked(HitReranker(fused, top=4, features=store), hits)
    assert "1 hit" in caplog.text
    for one, other in zip(decoded, stored, strict=True):
        assert [hit.id for hit in one] == [hit.id for hit in other[:3]]
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other[:3]], abs=1e-4)
        assert other[3].id == "deeper/white.png"


@pytest.mark.medium
def test_an_image_is_read_again_only_when_it_has_changed(
    fused: TwoTower, hits: list[list[Hit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, seen = fused.image.encoder.backbone, list[str]()
    read = type(backbone).read
    monkeypatch.setattr(
        type(backbone), "read", lambda self, source, **how: (seen.append(source.name), read(self, source, **how))[1]
    )
    plain = ranked(HitReranker(fused, top=4), hits)
    keeping = HitReranker(fused, top=4, keep_bytes=1_000_000)
    first = ranked(keeping, [hits[0][:2], []])
    assert [hit.id for hit in first[0]] == [hit.id for hit in plain[0] if hit.id in ("red.png", "green.png")]
    del seen[:]
    again = ranked(keeping, hits)
    assert sorted(seen) == ["blue.png", "white.png"]
    for one, other in zip(plain, again, strict=True):
        assert [hit.id for hit in one] == [hit.id for hit in other]
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], abs=1e-6)
    del seen[:]
    Image.new("RGB", (80, 80), "yellow").save(hits[0][0].path)
    hits[0][1].path.unlink()
    changed, _ = ranked(keeping, hits)
    assert seen == ["red.png", "green.png"] and changed[-1].id == "green.png"
    assert {hit.id: hit.score for hit in changed[:3]}["red.png"] == pytest.approx(
        direct(fused, QUERIES[0], [hits[0][0]])["red.png"], abs=1e-5
    )


def test_nothing_found_and_nothing_readable(
    fused: TwoTower, hits: list[list[Hit]], caplog: pytest.LogCaptureFixture
) -> None:
    assert ranked(HitReranker(fused), []) == []
    assert ranked(HitReranker(fused), [[], []]) == [[], []]
    for hit in hits[0]:
        hit.path.unlink()
    assert ranked(HitReranker(fused), hits) == hits


@pytest.mark.parametrize(("top", "weight"), [(0, 1.0), (5, 1.5), (5, -0.1)])
def test_options_out_of_range_are_refused(fused: TwoTower, top: int, weight: float) -> None:
    with pytest.raises(DataError, match=f"top.*{top}|weight.*{weight}"):
        HitReranker(fused, top=top, weight=weight)


def test_scores_that_are_no_numbers_are_refused(
    fused: TwoTower, hits: list[list[Hit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused.similarity, "pairs", lambda images, texts, i, t: torch.full(i.shape, torch.nan))
    assert names(refusal(ModelError, lambda: ranked(HitReranker(fused), hits)), hits[0][0].id, "NaN")


@pytest.mark.medium
def test_probabilities_are_those_of_the_model_that_ranks_again(fused: TwoTower, hits: list[list[Hit]]) -> None:
    curve = Calibration(
        model=fused.fingerprint,
        data=CalibrationData("drawn", num_images=50, num_texts=10, num_pairs=10),
        scores=(-1.0, 1.0),
        log_ratios=(-3.0, 3.0),
        relevant_above=(1.0, 0.5),
    )
    fused.calibration = curve
    known = [[replace(hit, probability=0.1) for hit in found] for found in hits]
    for found in ranked(HitReranker(fused, top=3), known):
        scores = np.array([hit.score for hit in found[:3]])
        assert [hit.probability for hit in found[:3]] == pytest.approx(curve.probabilities(scores, 4))
        assert found[3].probability == 0.1  # which keeps its score
    for found in ranked(HitReranker(fused, top=3), known, min_precision=0.25):
        assert len(found) <= 3 and all((hit.probability or 0) >= 0.25 for hit in found)
    assert {hit.probability for hit in ranked(HitReranker(fused, top=3, weight=0.5), known)[0][:3]} == {None}
    assert names(refusal(DataError, lambda: ranked(HitReranker(fused, weight=0.5), known, min_precision=0.25)), "0.5")
    fused.calibration = None
    with pytest.raises(ModelError, match="min_precision.*--calibrate"):
        ranked(HitReranker(fused), known, min_precision=0.25)


@pytest.mark.medium
def test_a_page_is_one_of_the_new_order(fused: TwoTower, hits: list[list[Hit]]) -> None:
    whole = ranked(HitReranker(fused, top=4), hits)
    for mine, all_hits in zip(ranked(HitReranker(fused, top=4), hits, top_k=2, skip=1), whole, strict=True):
        assert mine == all_hits[1:3]
    assert ranked(HitReranker(fused, top=4), hits, min_score=whole[0][1].score)[0] == whole[0][:2]
    (first, _) = HitReranker(fused, top=2).rerank(
        [Query(text) for text in QUERIES], [Answer(Hits(found), 4) for found in hits], [Page(top_k=1)] * 2
    )
    assert first.more and first.before == {"red.png": 1, "green.png": 2}
    best = whole[0][0].score
    limited = HitReranker(fused, top=2).rerank(
        [Query(text) for text in QUERIES],
        [Answer(Hits(results), 4) for results in hits],
        [Page(top_k=1, min_score=best)] * 2,
    )
    for answer in limited:  # the first model scores all hits above or below; only the new scores count
        assert all(hit.score >= best and hit.id in answer.before for hit in answer.hits)
        assert not answer.more or answer.hits
    later = HitReranker(fused, top=2)
    assert later.first(Page(top_k=1, skip=2)) == Page(top_k=1, skip=2)
    assert later.first(Page(top_k=1, skip=1, min_score=0.5)) == Page(top_k=2)
    (beyond,) = later.rerank([Query("red")], [Answer(Hits(hits[0][2:3]), 4, True)], [Page(1, 2)])
    assert (beyond.hits, beyond.more) == (hits[0][2:3], True)
    (none,) = later.rerank([Query("red")], [Answer(Hits(hits[0][2:3]), 4, True)], [Page(1, 2, min_score=-9.0)])
    assert (none.hits, none.more) == ([], False)
    refusal(DataError, lambda: HitReranker(fused).rerank([Query(like="red.png")], [Answer(Hits(hits[0]))], [Page()]))
