"""Averaged models against the mean of their full similarity matrices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.errors import DataError, ModelError, StoreError
from openvse.evaluation import rank_by_counting
from openvse.evaluation.embed import Member, embed_corpus, embed_ensemble, mean_scores
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.features.writer import FeatureStoreWriter
from openvse.functional import normalize, set_max_scores
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe
from openvse.types import EmbeddingSet, Relevance
from tests.tiny import tiny_tree, write_tiny_corpus

IMAGES, CAPTIONS = 12, 3
TEXTS = IMAGES * CAPTIONS
RELEVANCE = Relevance(np.arange(TEXTS) // CAPTIONS, np.arange(TEXTS), IMAGES, TEXTS)


def member(seed: int, dim: int = 8, k: int = 1, dtype: torch.dtype = torch.float64) -> Member:
    """Return a model's embeddings of its own width and number, in which an image and its texts agree a little."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(IMAGES, k, dim, dtype=torch.float64, generator=generator)
    texts = images[:, :1].repeat_interleave(CAPTIONS, 0)
    texts = texts + 2 * torch.randn(texts.shape, dtype=torch.float64, generator=generator)
    return Member(embedded(images.to(dtype)), embedded(texts.to(dtype)), set_max_scores)


def embedded(vectors: Tensor) -> EmbeddingSet:
    return EmbeddingSet(normalize(vectors).to(vectors.dtype), torch.ones(vectors.shape[:2], dtype=torch.bool))


def full_mean(members: list[Member]) -> Tensor:
    """The definition: the mean of the whole matrices."""
    return torch.stack([one.similarity(one.images, one.texts) for one in members]).mean(dim=0)


MIXED = [member(0), member(1, dim=5), member(2, dim=6, k=3)]


@pytest.mark.medium
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 20))
def test_ranks_equal_those_of_the_mean_matrix(num_members: int, block_size: int) -> None:
    members = MIXED[:num_members]
    first, *others = members
    report = evaluate_sets(
        first.images, first.texts, RELEVANCE, first.similarity, others=others, block_size=block_size, resamples=0
    )
    whole = full_mean(members)
    ranks = rank_by_counting(lambda rows, columns: whole[rows, columns], RELEVANCE, block_size=100)
    for side, queries in (("i2t", ranks.i2t), ("t2i", ranks.t2i)):
        assert report.metrics[f"{side}_meanr"] == pytest.approx(queries.ranks.mean())
        assert report.metrics[f"{side}_r1"] == pytest.approx(100 * (queries.ranks == 1).mean())
    assert report.protocol.num_models == num_members


def test_a_block_is_that_of_the_mean_matrix() -> None:
    rows, columns = slice(3, 9), slice(10, 25)
    found = mean_scores(MIXED, rows, columns)
    torch.testing.assert_close(found, full_mean(MIXED)[rows, columns], rtol=0, atol=1e-12)


def test_one_model_is_itself_to_the_bit() -> None:
    everything = slice(None)
    assert torch.equal(mean_scores(MIXED[:1], everything, everything), full_mean(MIXED[:1]))


def test_folds_cut_every_model() -> None:
    first, *others = MIXED
    report = evaluate_sets(first.images, first.texts, RELEVANCE, first.similarity, others=others, folds=3, resamples=0)
    means = []
    for start in range(0, IMAGES, 4):
        texts = torch.arange(start * CAPTIONS, (start + 4) * CAPTIONS)
        cut, *rest = [one.part(slice(start, start + 4), texts) for one in MIXED]
        own = Relevance(np.arange(12) // CAPTIONS, np.arange(12), 4, 12)
        means.append(evaluate_sets(cut.images, cut.texts, own, cut.similarity, others=rest, resamples=0).metrics)
    for name, value in report.metrics.items():
        assert value == pytest.approx(np.mean([mean[name] for mean in means])), name


def test_no_member_ever_scores_more_than_a_block() -> None:
    cells = []

    def counting(images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        cells.append(len(images) * len(texts))
        return set_max_scores(images, texts)

    first, *others = [replace(one, similarity=counting) for one in MIXED]
    evaluate_sets(first.images, first.texts, RELEVANCE, first.similarity, others=others, block_size=7, resamples=0)
    assert max(cells) <= 2 * 7**2 < IMAGES * TEXTS / 4


def test_the_block_follows_the_largest_member() -> None:
    one, other = member(0), member(1, k=4)
    report = evaluate_sets(one.images, one.texts, RELEVANCE, one.similarity, others=[other], resamples=0)
    assert report.protocol.block_size == 256  # 2^18 products, 4 a pair


def test_half_precision_members_are_averaged_in_single() -> None:
    members = [member(seed, dtype=torch.float16) for seed in (0, 1)]
    assert mean_scores(members, slice(None), slice(None)).dtype == torch.float32


def test_a_member_of_other_items_is_refused() -> None:
    one, other = member(0), member(1)
    fewer = replace(other, texts=other.texts[:5])
    with pytest.raises(DataError, match="12.*5.*12.*36"):
        evaluate_sets(one.images, one.texts, RELEVANCE, one.similarity, others=[fewer])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"), train=6, validation=4)


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Corpus:
    return open_corpus(folder / "tiny.csv", require_images=False)


def build(folder: Path, corpus: Corpus, embed_dim: int, seed: int) -> TwoTower:
    tree = {**tiny_tree(folder), "embed_dim": embed_dim, "seed": seed}
    return build_model(parse_recipe(tree), captions=corpus.captions)


def store_without(folder: Path, missing: str, target: Path) -> FeatureStore:
    """Copy the tiny store except for one image."""
    source = FeatureStore(folder / "features")
    with FeatureStoreWriter(target, fingerprint="tiny", dim=source.dim, dtype="float32") as writer:
        for number in range(10):
            name = f"{number:03d}.jpg"
            if name != missing:
                inputs = source.gather(source.positions([name]))
                writer.add(name, inputs.values[0])
    return FeatureStore(target)


@pytest.mark.medium
def test_each_model_embeds_as_it_does_alone(folder: Path, corpus: Corpus) -> None:
    models = [build(folder, corpus, 16, 0), build(folder, corpus, 8, 1)]
    store = FeatureStore(folder / "features")
    together = embed_ensemble(models, corpus, [store, store])
    assert together.corpus == corpus
    for model, found in zip(models, together.members, strict=True):
        alone = embed_corpus(model, corpus, store)
        assert torch.equal(found.images.vectors, alone.images.vectors)
        assert torch.equal(found.texts.vectors, alone.texts.vectors)
        assert found.similarity is model.similarity


@pytest.mark.parametrize("which", [0, 1])
def test_an_image_that_one_store_lacks_is_left_out_for_all(
    folder: Path, corpus: Corpus, tmp_path: Path, which: int
) -> None:
    models = [build(folder, corpus, 16, 0), build(folder, corpus, 8, 1)]
    stores = [FeatureStore(folder / "features")] * 2
    stores[which] = store_without(folder, "004.jpg", tmp_path / "fewer")
    together = embed_ensemble(models, corpus, stores)
    assert "004.jpg" not in together.corpus.image_ids and len(together.corpus) == 9
    assert {len(one.images) for one in together.members} == {9}
    assert {len(one.texts) for one in together.members} == {18}
    assert len([line for line in together.corpus.problems if "004.jpg" in line]) == 1


def test_stores_without_a_common_image_are_refused(folder: Path, corpus: Corpus, tmp_path: Path) -> None:
    with FeatureStoreWriter(tmp_path / "other", fingerprint="tiny", dim=12, dtype="float32") as writer:
        writer.add("else.jpg", torch.ones(2, 12))
    stores = [FeatureStore(folder / "features"), FeatureStore(tmp_path / "other")]
    with pytest.raises(StoreError, match="10.*tiny.*000.jpg"):
        embed_ensemble([build(folder, corpus, 8, seed) for seed in (0, 1)], corpus, stores)


@pytest.mark.medium
def test_a_model_that_reads_fewer_images_than_those_before_it(tmp_path: Path, make_photos) -> None:
    paths = make_photos(3)
    lines = ["file_name,caption,split", *(f"{path.name},red dog {path.stem},test" for path in paths)]
    (paths[0].parent / "captions.csv").write_text("\n".join(lines) + "\n")
    tree = tiny_tree(tmp_path)
    tree["image"]["encoder"] = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
    corpus = open_corpus(paths[0].parent / "captions.csv")
    models = [build_model(parse_recipe(tree), captions=corpus.captions, seed=seed) for seed in (0, 1)]
    with FeatureStoreWriter(
        tmp_path / "store", fingerprint="x", dim=models[0].image.encoder.feature_dim, dtype="float32"
    ) as writer:
        for path in paths:
            writer.add(path.name, torch.ones(4, models[0].image.encoder.feature_dim))
    store = FeatureStore(tmp_path / "store")
    paths[1].write_bytes(b"no image")
    for turn in (1, -1):
        together = embed_ensemble(models[::turn], corpus, [store, None][::turn])
        assert {len(one.images) for one in together.members} == {2} and len(together.corpus) == 2


def test_nothing_to_average(corpus: Corpus) -> None:
    with pytest.raises(DataError):
        embed_ensemble([], corpus, [])


@pytest.mark.parametrize(("side", "named"), [("image", "images.*NaN"), ("text", "captions.*NaN")])
def test_an_embedding_that_is_no_number_is_named(tmp_path: Path, side: str, named: str) -> None:
    write_tiny_corpus(tmp_path)
    corpus = open_corpus(tmp_path / "tiny.csv", require_images=False)
    model = build_model(parse_recipe(tiny_tree(tmp_path)), captions=corpus.captions)
    with torch.no_grad():
        next(getattr(model, side).parameters()).fill_(torch.nan)
    with pytest.raises(ModelError, match=f"{named}"):
        embed_corpus(model, corpus, FeatureStore(tmp_path / "features"))
