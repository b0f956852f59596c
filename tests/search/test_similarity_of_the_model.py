"""An index of a real model is searched with the similarity that the model has."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from openvse.errors import ModelError
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import IndexSettings
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.search import SearchEngine
from openvse.search.proposing import StoreSearch
from openvse.similarities import SetMax, Similarity, SmoothChamfer
from openvse.stores.following import plan_engine, update_engine
from openvse.tasks.recipes import parse_recipe
from openvse.types import EmbeddingSet
from tests.conftest import PhotoMaker
from tests.tiny import tiny_tree

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
