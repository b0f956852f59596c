"""An index of distributions: every search is by their distance, whichever side the query and the items are of.

An index of a real model is searched with the similarity that the model has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from openvse.errors import ModelError
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import IndexSettings, Item
from openvse.indexing.writer import Entry, IndexWriter
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.runtime.arrays import ArraySet, Kind, directions, embeds_gaussians
from openvse.search import Query, SearchEngine, find_duplicates
from openvse.search.proposing import StoreSearch
from openvse.similarities import CSD, SetMax, Similarity, SmoothChamfer
from openvse.stores.following import plan_engine, update_engine
from openvse.tasks.recipes import parse_recipe
from openvse.types import EmbeddingSet
from search.engine_helpers import ROOTS, name_of, unit
from tests.conftest import PhotoMaker
from tests.tiny import tiny_tree


def gaussians(count: int, side: str, seed: int) -> np.ndarray:
    """Means of length 1, and variances that decide the order as much as they do."""
    means, sums = unit(count, seed=seed)[:, 0], np.random.default_rng(seed).uniform(0.1, 2.0, (count, 1))
    ends = [-sums / 2, np.ones_like(sums)]
    return np.concatenate([means, *(ends if side == "image" else ends[::-1])], axis=1).astype(np.float32)


def distances(one: np.ndarray, other: np.ndarray, sums: tuple[int, int]) -> np.ndarray:
    """The closed-form sampled distance, from its definition; ``sums`` are the columns of the variances."""
    means = one[:, None, :-2].astype(np.float64) - other[None, :, :-2]
    of_one, of_other = -2 * one[:, sums[0]], -2 * other[:, sums[1]]
    return np.asarray((means**2).sum(axis=2) + of_one[:, None] + of_other[None])


@dataclass
class Exported:
    """A model whose embeddings are given: sentences and images are their numbers."""

    images: np.ndarray
    texts: np.ndarray
    kind: Kind = "csd"
    fingerprint: str = "g"

    def encode_text(self, captions: Sequence[str]) -> ArraySet:
        return ArraySet.full(self.texts[[int(each) for each in captions], None])

    def encode_image(self, images: Sequence[Any]) -> ArraySet:
        return ArraySet.full(self.images[[int(each.name) for each in images], None])


class OfTorch(Exported):
    """The same with a similarity."""

    kind = None  # type: ignore[assignment]
    similarity: Similarity = CSD()

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> torch.Tensor:
        scores: torch.Tensor = self.similarity(images, texts)
        return scores


def index_of(folder: Path, vectors: np.ndarray, holds: Any, gaussians: bool = True) -> Index:
    with IndexWriter(folder, model="g", roots=ROOTS, holds=holds, gaussians=gaussians) as writer:
        entries = [Entry(Item(name_of(number), number, number)) for number in range(len(vectors))]
        writer.append(entries, vectors[:, None])
    return Index.open(folder)


@pytest.mark.parametrize("store", [None, "int8"])
@pytest.mark.parametrize("holds", ["images", "sentences"])
@pytest.mark.parametrize("kind", [Exported, OfTorch])
def test_every_query_ranks_by_the_distance(kind: type[Exported], holds: str, store: str | None, tmp_path: Path) -> None:
    model = kind(gaussians(40, "image", 0), gaussians(40, "text", 1))
    assert embeds_gaussians(model)
    items, column = (model.images, -2) if holds == "images" else (model.texts, -1)
    index = index_of(tmp_path, items, holds)
    if store is not None:
        plan_engine(tmp_path, store).note(tmp_path)
        update_engine(tmp_path)
        index = Index.open(tmp_path)
    engine = SearchEngine(model, index)
    asked = [Query(text="3"), Query(image=Path("4")), Query(like=name_of(5))]
    expected = [
        distances(model.texts[3:4], items, (-1, column))[0],
        distances(model.images[4:5], items, (-2, column))[0],
        distances(items[5:6], items, (column, column))[0],
    ]
    for query, answer, wanted in zip(asked, engine.answer(asked), expected, strict=True):
        order = [number for number in wanted.argsort() if query.like != name_of(number)][:10]
        assert [hit.id for hit in answer.hits] == [name_of(number) for number in order]
        assert [hit.score for hit in answer.hits] == pytest.approx(1 - wanted[order] / 2, abs=1e-6)
        assert [hit.uncertainty for hit in answer.hits] == pytest.approx(-2 * items[order, column])
    sums = (-2 * model.texts[3, -1], -2 * model.images[4, -2], -2 * items[5, column])
    assert [answer.uncertainty for answer in engine.answer(asked)] == pytest.approx(sums)
    (joined,) = engine.answer(Query(text="3", image=Path("4")))
    assert joined.uncertainty is None
    assert joined.hits[0].score == pytest.approx(1 - ((expected[0] + expected[1]) / 4).min(), abs=1e-6)


@pytest.mark.parametrize("recorded", [True, False])
def test_duplicates_are_alike_in_their_means(recorded: bool, tmp_path: Path) -> None:
    vectors = gaussians(3, "image", 0)
    vectors[1, :-2] = vectors[0, :-2]  # the same mean, and another variance
    index_of(tmp_path, vectors, "images", recorded)
    assert Index.open(tmp_path).manifest.gaussians is recorded
    groups, _ = find_duplicates(tmp_path, 0.999999)
    found = [sorted(path.name for path in group) for group in groups]
    assert found == ([[name_of(0), name_of(1)]] if recorded else [])


def test_only_gaussians_have_less_than_all_as_direction() -> None:
    made = gaussians(3, "image", 0)
    assert np.array_equal(directions(made, are_gaussians=True), made[:, :-2])
    ordinary = unit(3)
    assert directions(ordinary, are_gaussians=False) is ordinary


QUERIES = ["red dog runs", "green cat sleeps on the grass", "blue bird"]


class Averaged(SetMax):
    """The mean over all pairs of embeddings; it promises nothing about inner-product search."""

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return images.vectors.mean(dim=1) @ texts.vectors.mean(dim=1).T


class AveragedAnyway(Averaged):
    """The same, and its author wants an index of it."""

    indexable = True


def with_similarity(similarity: Similarity) -> TwoTower:
    torch.manual_seed(0)
    tree = tiny_tree(Path())
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64}
    views = {"name": "multi_view", "num_views": 3, "aggregator": "mean", "share_projection": False}
    tree["image"] = {"encoder": encoder, "aggregator": views}
    model = build_model(parse_recipe(tree), captions=QUERIES).eval()
    return TwoTower(model.image, model.text, similarity, model.spec).eval()


@pytest.mark.medium
def test_a_subclass_that_promises_nothing_is_refused(make_photos: PhotoMaker, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        build_index(with_similarity(Averaged()), make_photos(2)[0].parent, tmp_path / "index")


@pytest.mark.medium
@pytest.mark.parametrize("similarity", [AveragedAnyway(), SmoothChamfer()])
def test_hits_come_in_the_order_of_the_models_scores(
    make_photos: PhotoMaker, tmp_path: Path, similarity: Similarity
) -> None:
    model, photos = with_similarity(similarity), make_photos(12)
    build_index(model, photos[0].parent, tmp_path / "index", settings=IndexSettings(dtype="float32"))
    index = Index.open(tmp_path / "index", model.fingerprint)
    images = EmbeddingSet(torch.from_numpy(index.vectors), torch.ones(12, 3, dtype=torch.bool))
    texts = model.encode_text(QUERIES)
    expected, by_maximum = model.score(images, texts), SetMax()(images, texts)
    for column, hits in enumerate(SearchEngine(model, index).search(QUERIES, top_k=12)):
        order = expected[:, column].argsort(descending=True).tolist()
        assert [hit.id for hit in hits] == [index.items[row].id for row in order]
        assert [hit.score for hit in hits] == pytest.approx(expected[order, column].tolist(), abs=1e-5)
        assert order != by_maximum[:, column].argsort(descending=True).tolist()


@pytest.mark.medium
def test_the_maximum_proposes_to_a_store_and_the_similarity_orders(make_photos: PhotoMaker, tmp_path: Path) -> None:
    model, photos = with_similarity(SmoothChamfer()), make_photos(30)
    build_index(model, photos[0].parent, tmp_path / "index", settings=IndexSettings(dtype="float32"))
    plan_engine(tmp_path / "index", "int8", model=model).note(tmp_path / "index")
    update_engine(tmp_path / "index")
    engine = SearchEngine(model, Index.open(tmp_path / "index", model.fingerprint))
    exact = SearchEngine(model, Index.open(tmp_path / "index", model.fingerprint), engine="exact")
    assert isinstance(engine.catalogue.searcher, StoreSearch)
    for found, wanted in zip(engine.search(QUERIES, top_k=5), exact.search(QUERIES, top_k=5), strict=True):
        assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in wanted]
